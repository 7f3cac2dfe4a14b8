"""What both command lines share: options, errors, and what is printed.

Reading order: text, accepted, arguments, options, errors, output, batches, spark_jobs, demo.
"""
