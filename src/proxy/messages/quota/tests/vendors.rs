//! A case for each vendor, with the place of its documentation.

use super::{all, invalid, ms, seconds, valid, window};
use crate::proxy::messages::quota::values::{DAY, SECOND};
use crate::proxy::messages::quota::window::QuotaWindow;

#[test]
fn one_window_with_an_instant_or_a_span() {
    all(&[
        // <https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api>
        (
            &[
                ("x-ratelimit-limit", "5000"),
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-used", "5000"),
                ("x-ratelimit-reset", "1767227400"),
                ("x-ratelimit-resource", "core"),
            ],
            valid(Some(seconds(1800)), &[window(Some(5000), Some(0), Some(1800), None)]),
        ),
        // X, formerly Twitter: <https://docs.x.com/x-api/fundamentals/rate-limits>; Okta:
        // <https://developer.okta.com/docs/reference/rl-best-practices/>
        (
            &[
                ("x-rate-limit-limit", "900"),
                ("x-rate-limit-remaining", "0"),
                ("x-rate-limit-reset", "1767226500"),
            ],
            valid(Some(seconds(900)), &[window(Some(900), Some(0), Some(900), None)]),
        ),
        // GitLab: <https://gitlab.com/gitlab-org/gitlab/-/issues/217312>: the draft's names, and an epoch.
        (
            &[
                ("ratelimit-limit", "600"),
                ("ratelimit-observed", "601"),
                ("ratelimit-remaining", "0"),
                ("ratelimit-reset", "1767225660"),
                ("ratelimit-resettime", "Thu, 01 Jan 2026 00:01:00 GMT"),
            ],
            valid(Some(seconds(60)), &[window(Some(600), Some(0), Some(60), None)]),
        ),
        // <https://docs.discord.com/developers/topics/rate-limits>: the span is more exact than the instant.
        (
            &[
                ("x-ratelimit-limit", "10"),
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-reset", "1767225602.123"),
                ("x-ratelimit-reset-after", "1.5"),
                ("x-ratelimit-bucket", "abcd1234"),
                ("x-ratelimit-scope", "user"),
            ],
            valid(
                Some(ms(1500)),
                &[QuotaWindow { resets_in: Some(ms(1500)), ..window(Some(10), Some(0), None, None) }],
            ),
        ),
        // <https://github.com/reddit-archive/reddit/wiki/API>
        (
            &[("x-ratelimit-used", "100"), ("x-ratelimit-remaining", "0.0"), ("x-ratelimit-reset", "278")],
            valid(Some(seconds(278)), &[window(None, Some(0), Some(278), None)]),
        ),
    ]);
}

#[test]
fn one_window_without_a_reset() {
    all(&[
        // <https://shopify.dev/docs/api/admin-rest/usage/rate-limits>: a bucket that leaks, and no reset.
        (
            &[("x-shopify-shop-api-call-limit", "32/40")],
            valid(None, &[window(Some(40), Some(8), None, None)]),
        ),
        (
            &[("x-shopify-shop-api-call-limit", "41/40"), ("retry-after", "2.0")],
            valid(Some(seconds(2)), &[window(Some(40), Some(0), None, None)]),
        ),
        (&[("x-shopify-shop-api-call-limit", "32")], invalid(1)),
        (&[("x-shopify-shop-api-call-limit", "-1/40")], invalid(1)),
        // <https://docs.docker.com/docker-hub/usage/pulls/>
        (
            &[("ratelimit-limit", "100;w=21600"), ("ratelimit-remaining", "76;w=21600")],
            valid(None, &[window(Some(100), Some(76), None, Some(21600))]),
        ),
        // <https://developers.brevo.com/docs/limit-headers>
        (
            &[
                ("x-sib-ratelimit-limit", "1000"),
                ("x-sib-ratelimit-remaining", "0"),
                ("x-sib-ratelimit-reset", "40"),
            ],
            valid(Some(seconds(40)), &[window(Some(1000), Some(0), Some(40), None)]),
        ),
        // <https://developers-classic.mailerlite.com/docs/api-rate-limits>
        (
            &[("x-ratelimit-limit", "60"), ("x-ratelimit-remaining", "0"), ("x-ratelimit-retry-after", "59")],
            valid(Some(seconds(59)), &[window(Some(60), Some(0), None, None)]),
        ),
        // <https://marketplace.zoom.us/docs/api-reference/rate-limits>
        (
            &[
                ("x-ratelimit-category", "Heavy"),
                ("x-ratelimit-type", "Daily-limit"),
                ("x-ratelimit-limit", "30000"),
                ("x-ratelimit-remaining", "0"),
                ("retry-after", "2026-01-02T00:00:00Z"),
            ],
            valid(Some(DAY), &[window(Some(30000), Some(0), None, None)]),
        ),
    ]);
}

#[test]
fn one_window_with_policies() {
    all(&[
        // Envoy: <https://www.envoyproxy.io/docs/envoy/latest/api-v3/extensions/filters/http/ratelimit/v3/rate_limit.proto>
        (
            &[
                ("x-ratelimit-limit", "10, 10;w=1;name=\"per-ip\", 1000;w=3600"),
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-reset", "1"),
            ],
            valid(
                Some(SECOND),
                &[window(Some(10), Some(0), Some(1), Some(1)), window(Some(1000), None, None, Some(3600))],
            ),
        ),
        // <https://developer.whoop.com/docs/developing/rate-limiting>
        (
            &[
                ("x-ratelimit-limit", "100, 100;window=60, 10000;window=86400"),
                ("x-ratelimit-remaining", "98"),
                ("x-ratelimit-reset", "3"),
            ],
            valid(
                None,
                &[
                    window(Some(100), Some(98), Some(3), Some(60)),
                    window(Some(10000), None, None, Some(86400)),
                ],
            ),
        ),
        // <https://developers.cloudflare.com/fundamentals/api/reference/limits/>
        (
            &[
                ("ratelimit", "\"default\";r=0;t=30"),
                ("ratelimit-policy", "\"default\";q=1200;w=300"),
                ("retry-after", "31"),
            ],
            valid(Some(seconds(31)), &[window(Some(1200), Some(0), Some(30), Some(300))]),
        ),
    ]);
}

#[test]
fn several_windows_of_model_providers_and_linear() {
    all(&[
        // <https://platform.openai.com/docs/guides/rate-limits>; Groq: <https://console.groq.com/docs/rate-limits>
        (
            &[
                ("x-ratelimit-limit-requests", "60"),
                ("x-ratelimit-limit-tokens", "150000"),
                ("x-ratelimit-remaining-requests", "59"),
                ("x-ratelimit-remaining-tokens", "0"),
                ("x-ratelimit-reset-requests", "1s"),
                ("x-ratelimit-reset-tokens", "6m0s"),
            ],
            valid(
                Some(seconds(360)),
                &[window(Some(60), Some(59), Some(1), None), window(Some(150_000), Some(0), Some(360), None)],
            ),
        ),
        // Anthropic: <https://docs.aws.amazon.com/claude-platform/latest/userguide/rate-limits.html>: a full window was reset a second ago.
        (
            &[
                ("anthropic-ratelimit-requests-limit", "1000"),
                ("anthropic-ratelimit-requests-remaining", "1000"),
                ("anthropic-ratelimit-requests-reset", "2025-12-31T23:59:59Z"),
                ("anthropic-ratelimit-input-tokens-limit", "80000"),
                ("anthropic-ratelimit-input-tokens-remaining", "0"),
                ("anthropic-ratelimit-input-tokens-reset", "2026-01-01T00:00:12Z"),
            ],
            valid(
                Some(seconds(12)),
                &[
                    window(Some(1000), Some(1000), Some(0), None),
                    window(Some(80000), Some(0), Some(12), None),
                ],
            ),
        ),
        // <https://linear.app/developers/rate-limiting>: milliseconds since 1970.
        (
            &[
                ("x-ratelimit-requests-limit", "5000"),
                ("x-ratelimit-requests-remaining", "4999"),
                ("x-ratelimit-requests-reset", "1767229200000"),
                ("x-ratelimit-complexity-limit", "250000"),
                ("x-ratelimit-complexity-remaining", "0"),
                ("x-ratelimit-complexity-reset", "1767225660500"),
            ],
            valid(
                Some(ms(60_500)),
                &[
                    window(Some(5000), Some(4999), Some(3600), None),
                    QuotaWindow { resets_in: Some(ms(60_500)), ..window(Some(250_000), Some(0), None, None) },
                ],
            ),
        ),
    ]);
}

#[test]
fn several_windows_of_kong_zendesk_and_hubspot() {
    all(&[
        // Kong: <https://docs.konghq.com/hub/kong-inc/response-ratelimiting/>, and the plugin `rate-limiting` beside it
        (
            &[
                ("ratelimit-limit", "6"),
                ("ratelimit-remaining", "0"),
                ("ratelimit-reset", "47"),
                ("x-ratelimit-limit-minute", "6"),
                ("x-ratelimit-remaining-minute", "0"),
                ("x-ratelimit-limit-videos-hour", "100"),
                ("x-ratelimit-remaining-videos-hour", "94"),
            ],
            valid(
                Some(seconds(47)),
                &[
                    window(Some(6), Some(0), Some(47), None),
                    window(Some(6), Some(0), None, Some(60)),
                    window(Some(100), Some(94), None, Some(3600)),
                ],
            ),
        ),
        // <https://developer.zendesk.com/documentation/ticketing/using-the-zendesk-api/best-practices-for-avoiding-rate-limiting/>
        (
            &[
                ("x-rate-limit", "700"),
                ("ratelimit-limit", "700"),
                ("x-rate-limit-remaining", "0"),
                ("ratelimit-remaining", "0"),
                ("ratelimit-reset", "41"),
                ("zendesk-ratelimit-tickets-index", "total=100; remaining=99; resets=41"),
            ],
            valid(
                Some(seconds(41)),
                &[window(Some(700), Some(0), None, None), window(Some(700), Some(0), Some(41), None)],
            ),
        ),
        // <https://developers.hubspot.com/changelog/2018-11-06-rate-limit-information-headers-will-be-included-in-http-responses>
        (
            &[
                ("x-hubspot-ratelimit-daily", "250000"),
                ("x-hubspot-ratelimit-daily-remaining", "249000"),
                ("x-hubspot-ratelimit-secondly", "10"),
                ("x-hubspot-ratelimit-secondly-remaining", "0"),
            ],
            valid(
                None,
                &[window(None, Some(249_000), None, Some(86400)), window(None, Some(0), None, Some(1))],
            ),
        ),
    ]);
}

#[test]
fn several_windows_of_contentful_jira_and_trello() {
    all(&[
        // <https://www.contentful.com/developers/docs/references/content-management-api/>: the reset belongs to the spent window.
        (
            &[
                ("x-contentful-ratelimit-second-limit", "10"),
                ("x-contentful-ratelimit-second-remaining", "0"),
                ("x-contentful-ratelimit-reset", "1"),
            ],
            valid(
                Some(SECOND),
                &[window(Some(10), Some(0), None, Some(1)), window(None, None, Some(1), None)],
            ),
        ),
        // Jira: <https://developer.atlassian.com/cloud/jira/platform/rate-limiting/>
        (
            &[
                ("beta-ratelimit-policy", "\"tenant-app-quota\";q=100100;w=3600"),
                ("beta-ratelimit", "\"tenant-app-quota\";r=0;t=2788"),
                ("x-ratelimit-limit", "400"),
                ("x-ratelimit-remaining", "399"),
                ("x-ratelimit-reset", "2026-01-01T00:30Z"),
                ("x-ratelimit-nearlimit", "true"),
            ],
            valid(
                Some(seconds(2788)),
                &[
                    window(Some(100_100), Some(0), Some(2788), Some(3600)),
                    window(Some(400), Some(399), Some(1800), None),
                ],
            ),
        ),
        // <https://developer.atlassian.com/cloud/trello/guides/rest-api/rate-limits/>
        (
            &[
                ("x-rate-limit-api-token-interval-ms", "10000"),
                ("x-rate-limit-api-token-max", "100"),
                ("x-rate-limit-api-token-remaining", "0"),
                ("x-rate-limit-api-key-interval-ms", "10000"),
                ("x-rate-limit-api-key-max", "300"),
                ("x-rate-limit-api-key-remaining", "200"),
            ],
            valid(None, &[window(Some(100), Some(0), None, None), window(Some(300), Some(200), None, None)]),
        ),
    ]);
}
