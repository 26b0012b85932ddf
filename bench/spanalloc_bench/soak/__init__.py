"""`spanalloc bench soak`: servers under load that changes, for long, to see whether their memory stays where it is.

    phases.py               which load when: a cycle of phases, the same for every allocator
    redis.py mariadb.py node.py   one server program each: how to start it and what its phases do
    programs.py             the three of them, and what a machine lacks
    memory.py               what the kernel says that a process has, and which library it has loaded
    run.py                  starts the servers side by side, loads them, samples them
    records.py              the samples and facts of a folder
    levels.py               level and slope of the samples
    report.py               the table and the picture
    command.py              the command's work
"""
