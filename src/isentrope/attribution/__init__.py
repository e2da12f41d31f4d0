"""Who moves whom: influence, Fisher kernel, proxies and noise scale (T6)–(T9)."""
