//! Computes the earliest instant at which every limit has room. Pure: knows no store, no clock and no waiting requests.
//!
//! Most files have a twin of the same name in `lua/`; a test compares them step by step on a real Redis. From the bottom to the
//! top: [`cell`] and [`quota`]; the [`algorithm`]s, one file each; [`rule`], with the list of them; [`timeline`], the bookings;
//! [`pause`] and [`external_usage`]; [`search`] over all rules; [`reschedule`] after a change; [`state`] of one limiter; [`moving`] of
//! several together; and [`reserve`], one call for a queue.

pub mod algorithm;
pub mod cell;
pub mod deal;
pub mod declared;
pub mod external_usage;
pub mod limiter_ref;
pub mod line;
pub mod moving;
pub mod pause;
mod prospects;
pub mod queue_order;
pub mod quota;
pub mod reschedule;
pub mod reserve;
mod room;
pub mod rule;
pub mod search;
pub mod share;
pub mod state;
pub mod timeline;
