"""The fault suite: real processes under load, killed, stopped and cut off at random, and a checker of the promises.

    python -m tests.faults --help       the whole; `make faults`
    tests/faults/test_*.py              short runs of it, in `make test`

`fleet` runs the processes and `proxy` stands between them and their services; `schedule` draws faults from a seed
out of `kinds`, or takes them in turn; `load`, `clients` and `readers` are users, who write down what they saw;
`checker` compares that with what Postgres says; `audit` has Postgres itself write down every transition and every
write; `doorbells` sees whether they still ring. `breaks` switches promises of the product off, one at a time, so that
the checker can be seen to notice. `handover` measures how long streams stand still.
"""
