"""`rocketcompat demo`.

Reading order: child, damage, run, spark.
"""
