"""Thin typed layer over Kafka: records in and out, transactions, topics. Nothing here blocks the event loop."""
