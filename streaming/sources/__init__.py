"""The data sources over the log and their options; not what a query does with the rows."""
