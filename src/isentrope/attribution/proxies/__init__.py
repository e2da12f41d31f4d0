"""Published proxies of influence, and their audit (T9)."""
