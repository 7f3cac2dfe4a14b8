"""The files of a RocketMQ root that hold no records or hold them blindly.

Reading order: mapped_file, mmap_file, mapped_file_queue, transient_pool, lock,
checkpoint, progress, mirror_file, config_files, broker_config.
"""
