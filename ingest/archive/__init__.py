"""Every topic as Parquet files, for SQL, replay and people.

`columns` and `files` are the layout, `buffer` decides what is written when, `service` does the reading.
"""
