"""The fault suite: it kills, stops and cuts off real processes under load, then checks what Longhaul promises.

    python -m tests.faults --help       the whole suite (`make faults`)
    tests/faults/test_*.py              a short form of it, and single scenarios, in `make test-long`

The parts:

    fleet, member, proxy, clocks    the processes, their TCP proxies to the services, and clocks that can be shifted
    kinds, schedule                 the table of faults by name; draws them from a seed, or takes them in turn
    arena                           what a fault gets: the fleet, its target, its own random numbers, and locks
    process_faults                  faults of processes, their connections and clocks: what is done and undone
    service_faults                  Valkey and Postgres as a whole, messages and events
    store_faults, full_disk         statements that Postgres ends, and a full disk
    moments                         faults between a commit and what follows from it, and in locks
    load, clients, readers          users; each records in a story what it was sent
    batch_clients                   users of batches: they follow, cancel and retry
    tenants                         two projects with keys and limits, and the ledger that the admin API shows
    audit, accounts                 triggers by which Postgres records transitions, chunks, results and reservations
    evidence, checker               everything that was recorded; the rules that compare it
    project_rules                   those about usage, limits and stored bytes
    batches, batch_rules            batches in the end; each line has one result, and files say what rows say
    scenarios                       what the tests of single faults share
    breaks                          switches off promises of the product, to prove that the checker notices
"""
