"""What the data sources and jobs of both packages share.

Reading order: java, pushdown, options, settings, shapes, write_options, intake, loads, tasks,
sink, source, frames, triggers, running, publishing.
"""
