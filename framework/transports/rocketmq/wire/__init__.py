"""The remoting protocol as bytes <-> values: frames, codes, stored messages, properties, POP handles, signatures. No I/O here."""
