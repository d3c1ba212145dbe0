//! Tests of the simulation's oracle: that it finds what is wrong, and blames no limiter that keeps its promises.

#[path = "simulation/oracle/mod.rs"]
mod oracle;
