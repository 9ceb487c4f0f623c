//! Passes: `Plan -> Plan` rewrites.
