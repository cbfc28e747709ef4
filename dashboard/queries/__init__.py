"""The dashboard's SQL, as the role ``analyst`` over the views of the schema ``analysis``.

Lists and charts read ``job`` and the summaries. Per-query tables are read only for a single head, query or example of
a single job, and with a limit.
"""
