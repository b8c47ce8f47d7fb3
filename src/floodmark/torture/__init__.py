"""Real processes, killed at random and started again; in the end an oracle compares every destination with what was
acknowledged.

Terms. A *member* is something that lives, is killed and comes back: a writer, the daemon, a hub, a server. A *journal*
is what a writer writes down about its captures. *Trouble* is the time in which members are killed; the *drain* is the
time after it, in which the daemon finishes what is left.

    members live and die (`chaos_run`) → writers finish their journals → the daemon drains → every destination is read
    (`reading`) → the oracle says what is wrong (`verdict`)

What is read is read here, with other code than what delivered it.
"""
