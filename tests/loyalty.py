"""`dramatiq tests.loyalty`: the worker of the product's own queue, under Dramatiq's command line."""

from workers.carrier import install

broker = install("loyalty")
