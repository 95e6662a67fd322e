"""The log: Kafka clients, the service skeleton, assembler, archive and analytics."""
