"""`dramatiq workers.marketing`: every channel's marketing queue."""

from workers.carrier import install

broker = install("marketing")
