//! The versions of draft-ietf-httpapi-ratelimit-headers.

use super::{all, invalid, seconds, valid, window};
use crate::proxy::messages::quota::values::SPAN_MAX;
use crate::proxy::messages::quota::window::QuotaWindow;

/// draft-ietf-httpapi-ratelimit-headers, <https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/>.
#[test]
fn the_drafts() {
    all(&[
        // Up to -06: three fields, and the policies behind the limit or in a field of their own.
        (
            &[
                ("ratelimit-limit", "10, 10;w=1, 50;w=60"),
                ("ratelimit-remaining", "0"),
                ("ratelimit-reset", "50"),
            ],
            valid(
                Some(seconds(50)),
                &[window(Some(10), Some(0), Some(50), Some(1)), window(Some(50), None, None, Some(60))],
            ),
        ),
        (
            &[
                ("ratelimit-policy", "100;w=60;comment=\"sliding window\""),
                ("ratelimit-limit", "100"),
                ("ratelimit-remaining", "50"),
                ("ratelimit-reset", "50"),
            ],
            valid(None, &[window(Some(100), Some(50), Some(50), Some(60))]),
        ),
        // -07: a dictionary.
        (
            &[("ratelimit", "limit=100, remaining=50, reset=50"), ("ratelimit-policy", "100;w=60")],
            valid(None, &[window(Some(100), Some(50), Some(50), Some(60))]),
        ),
        (
            &[("ratelimit", "limit=100, remaining=0, reset=50")],
            valid(Some(seconds(50)), &[window(Some(100), Some(0), Some(50), None)]),
        ),
        // From -08 on: lists with names, which were tokens in some versions.
        (
            &[
                ("ratelimit", "\"permin\";r=0;t=30, perhr;r=399;pk=:dHJpYWw=:"),
                ("ratelimit-policy", "\"permin\";q=50;w=60, perhr;q=1000;qu=\"requests\""),
                ("ratelimit-policy", "\"perday\";q=5000;w=86400"),
            ],
            valid(
                Some(seconds(30)),
                &[
                    window(Some(50), Some(0), Some(30), Some(60)),
                    window(Some(1000), Some(399), None, None),
                    window(Some(5000), None, None, Some(86400)),
                ],
            ),
        ),
        // Malformed fields must be ignored (-10, section 6).
        (&[("ratelimit", "\"a\";r=-1;t=30")], invalid(1)),
        (&[("ratelimit", "\"a\";r=1;t=1.5")], invalid(1)),
        (&[("ratelimit", "\"a\";t=30")], invalid(1)),
        (&[("ratelimit", "\"a\";r=0;t=30, \"b\"")], invalid(1)),
        (&[("ratelimit", "\"a;r=0;t=30")], invalid(1)),
        (&[("ratelimit", "limit=100, reset=50")], invalid(1)),
        (&[("ratelimit", "limit=100, remaining=(1), reset=50")], invalid(1)),
        (&[("ratelimit", "")], invalid(1)),
        (&[("ratelimit-policy", "\"a\";w=60")], invalid(1)),
        (&[("ratelimit-policy", "(1 2)")], invalid(1)),
        (&[("ratelimit-policy", "?1")], invalid(1)),
        (&[("ratelimit", "\"a\";r=0;t=999999999999999")], {
            let spent =
                QuotaWindow { remaining: Some(0), resets_in: Some(SPAN_MAX), ..QuotaWindow::default() };
            valid(Some(SPAN_MAX), &[spent])
        }),
    ]);
}
