import os, a.b
import a.c as c
from . import own
from ..up.more import name, other as x
NUMBERS = (1, 2.5, 1 << 40, b"bytes", None, {"set"})
class Held:
    import inner
def later():
    import never
try:
    import maybe
except ImportError:
    maybe = None
if NUMBERS in ():
    from d.e import *
