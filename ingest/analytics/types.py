"""Arrow types in DuckDB's words. Registering an empty Arrow table would say the same, but costs a second of imports."""

import pyarrow as pa

_PLAIN = {
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.bool_(): "BOOLEAN",
    pa.uint8(): "UTINYINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.timestamp("us"): "TIMESTAMP",
}


def column_definitions(schema: pa.Schema) -> str:
    """What stands between the brackets of CREATE TABLE."""
    return ", ".join(f'"{field.name}" {sql_type(field.type)}' for field in schema)


def sql_type(kind: pa.DataType) -> str:
    """The DuckDB type of an Arrow type that the archive uses."""
    if isinstance(kind, pa.ListType):
        return f"{sql_type(kind.value_type)}[]"
    if isinstance(kind, pa.MapType):
        return f"MAP({sql_type(kind.key_type)}, {sql_type(kind.item_type)})"
    if isinstance(kind, pa.StructType):
        return f"STRUCT({column_definitions(pa.schema(list(kind)))})"
    return _PLAIN[kind]
