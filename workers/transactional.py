"""`dramatiq workers.transactional`: every channel's transactional queue."""

from workers.carrier import install

broker = install("transactional")
