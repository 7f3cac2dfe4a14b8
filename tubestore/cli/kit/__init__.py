"""What both command lines share: options, errors, and what is printed.

Reading order: text, accepted, arguments, options, errors, output, progress, batches, spark_jobs,
demo.
"""
