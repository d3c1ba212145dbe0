//! The floors of the rooms: a room may use only rooms on its own floor or below.

/// The floors of each room's children, the lowest floor first; a room is named by its path. Every child is on one
/// floor. Children on one floor may use each other so long as there is no circle.
pub(crate) type Floors<'a> = &'a [(&'a str, &'a [&'a [&'a str]])];

/// The floors of the house.
pub(crate) const FLOORS: Floors<'static> = &[
    (
        "",
        &[
            &["clock", "entropy", "bearer", "usage"],
            &["telemetry"],
            &["limiter"],
            &["config"],
            &["redis", "proxy"],
            &["admin"],
            &["app"],
            &["cli"],
            &["main"],
        ],
    ),
    ("limiter", &[&["model"], &["arithmetic"], &["store"], &["recovery"], &["queue"], &["registry"]]),
];
