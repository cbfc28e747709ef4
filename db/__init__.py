"""The results database: migrations, repositories, bulk writing and the analysts' views."""
