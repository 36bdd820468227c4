"""The fault suite: it kills, stops and cuts off real processes under load, then checks what Longhaul promises.

    python -m tests.faults --help       the whole suite (`make faults`)
    tests/faults/test_*.py              short runs of it, in `make test`

The parts:

    fleet, member, proxy        the processes, and the TCP proxies between them and their services
    schedule, kinds             draws faults from a seed, or takes them in turn; what each kind of fault does
    queue_faults                faults between a commit and the message that follows from it
    batch_faults                faults in the middle of a batch's step, and of its lines
    store_faults, full_disk     faults within Postgres: statements that it ends, a full disk
    clocks                      wall clocks that can be shifted, process by process
    arena                       what a fault gets: the fleet, its target, its own random numbers, and locks
    load, clients, readers      users; each records in a story what it was sent
    batch_clients               users of batches: they follow, cancel and retry
    tenants                     two projects with keys and limits, and the ledger that the admin API shows
    audit, accounts             triggers by which Postgres records transitions, chunks, results, reservations and usage
    evidence, checker           everything that was recorded; the rules that compare it
    project_rules               those about usage, limits, conversations, and what one project sees of another
    batches, batch_rules        batches in the end; each line has one result, and files say what rows say
    gauges                      whether `/metrics` of each process shows what the rows say
    doorbells                   whether every worker still publishes, and every API process still receives
    scenarios                   what the tests of single faults share
    breaks                      switches off one promise of the product, to prove that the checker notices
    handover                    measures how long a stream pauses when its worker goes
"""
