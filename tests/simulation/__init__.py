"""The product's own code under a scheduler that decides who runs, who dies and what the network does.

| module     | what it is                                                                                          |
|------------|-----------------------------------------------------------------------------------------------------|
| `stage`    | actors that take turns: one runs at a time, and stops where the scheduler says                      |
| `disk`     | what a power cut leaves of files: unsynced writes and names may be gone, torn or holed              |
| `places`   | a lake, a bucket and a network that lose, delay and repeat requests                                 |
| `world`    | two stores, a bucket, the processes on them, and the oracle                                         |
| `schedule` | a seed becomes a list of steps; a list of steps is run, and shrunk when it fails                    |
| `bugs`     | bugs that are put into the product on purpose: the simulation must find each                        |
"""
