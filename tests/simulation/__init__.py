"""The product's own code under a scheduler that decides who runs, who dies and what the network does.

| module     | what it is                                                                                          |
|------------|-----------------------------------------------------------------------------------------------------|
| `stage`    | actors that take turns: one runs at a time, and stops where the scheduler says                      |
| `disk`     | what a power cut leaves of files: unsynced writes and names may be gone, torn or holed              |
| `places`   | a lake, a bucket and a network that lose, delay and repeat requests                                 |
| `others`   | what users bring along: a projection, a settle function, data without numbers or an order           |
| `world`    | two stores, their destinations, the processes on them, and what happens to them                     |
| `workshop` | where worlds are made, and what is put in the place of what a machine would decide                  |
| `operations` | what processes do, and where they are stopped or killed                                           |
| `watch`    | what must hold of every single commit: no row is lost by it, and nothing changes on its way to a sink |
| `judgement` | every destination, compared with what was acknowledged, removed and found to be one                |
| `schedule` | a seed becomes a list of steps; a list of steps is run, and shrunk when it fails                    |
| `bugs`, `seeded_…` | bugs that are put into the product on purpose: the simulation must find each                |
"""
