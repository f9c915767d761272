"""The data sources over the log and their options."""
