//! The pictures of `docs/tour.md`, of a fleet under load: `scripts/dashboard` makes them, in `target/dashboard/tour`. What the text says
//! about a picture is waited for before that is taken.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::support::load::Load;
use crate::support::page::{Page, Screen};
use crate::support::{RedisServer, Reply, Request, Upstream, Weir, lane};

const WIDE: Screen = Screen { width: 1280, height: 900, is_phone: false, is_dark: false };
const DARK_PHONE: Screen = Screen { width: 390, height: 844, is_phone: true, is_dark: true };

/// How long the fleet works before the first picture, so that the charts have lines.
const WORKS_FOR: Duration = Duration::from_secs(60);

fn config(redis: &RedisServer, upstream: &Upstream) -> String {
    let (store, url) = (redis.store(), upstream.url());
    format!(
        "store: {store}\n\
         clients:\n  chat: {{tokens: [c]}}\n  nightly: {{tokens: [n]}}\n  reports: {{tokens: [r]}}\n  shop: {{tokens: [s]}}\n\
         limiters:\n  \
         openai:\n    limits: [10/1s, 5000/1h]\n    queue: {{timeout: 5m, max_waiting: 500}}\n    \
         share: {{by: client, classes: [{{name: interactive, of: [chat]}}, {{name: batch, of: [nightly, reports]}}], weights: {{nightly: 3}}}}\n  \
         tenants: {{limits: [5/1s, 3000/1h], key: [\"header:x-tenant\"], show_values: true, queue: {{timeout: 5s, max_waiting: 20}}}}\n  \
         orders: {{limits: [600/1h], queue: {{timeout: 30s, max_waiting: 100}}}}\n\
         routes:\n  \
         - {{name: openai, match: {{path: /openai}}, upstream: \"{url}\", limiter: openai}}\n  \
         - {{name: tenants, match: {{path: /tenants}}, upstream: \"{url}\", limiter: tenants}}\n  \
         - {{name: orders, match: {{path: /orders}}, upstream: \"{url}\", limiter: orders}}\n"
    )
}

/// Lets the upstream tell what it has counted of its quota for orders, of which others use a part.
fn count_orders(upstream: &Upstream) {
    let weirs = upstream.targets().iter().filter(|target| *target == "/orders").count();
    let left = 600 - weirs - weirs / 4;
    let told = Reply::status(200).header("x-ratelimit-limit", "600");
    upstream.reply("/orders", told.header("x-ratelimit-remaining", &left.to_string()));
}

fn pictures() -> PathBuf {
    let pictures = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/dashboard/tour");
    fs::create_dir_all(&pictures).expect("a directory");
    pictures
}

#[tokio::test]
#[ignore = "needs chromium, and takes two minutes: scripts/dashboard"]
async fn a_fleet_under_load_is_shown() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    count_orders(&upstream);
    let fleet = Weir::fleet(2, &config(&redis, &upstream)).await;
    let by =
        |token: &str, path: &str| Request::get(path).header("weir-authorization", &format!("Bearer {token}"));
    let tenant = |name: &str| by("s", "/tenants").header("x-tenant", name);
    let millis = Duration::from_millis;
    let load = |replica: usize, clients, between, request: Request| {
        Load::paced(&fleet[replica], clients, &request, millis(between))
    };
    let chat = load(0, 3, 700, by("c", "/openai"));
    let _batch = [load(1, 30, 10, by("n", "/openai")), load(0, 20, 10, by("r", "/openai"))];
    let tenants = [
        (0, 12, 50, "acme"),
        (0, 1, 400, "globex"),
        (0, 1, 900, "initech"),
        (0, 1, 1500, "umbrella"),
        (1, 1, 1500, "wayne"),
    ];
    let _tenants =
        tenants.map(|(replica, clients, between, name)| load(replica, clients, between, tenant(name)));
    let _orders = load(1, 1, 400, by("s", "/orders"));
    let pictures = pictures();
    let card = |name: &str| format!("article[aria-label={name}]");
    let (wide, phone) = (pictures.join("page.png"), pictures.join("phone.png"));

    let mut page = Page::open(&fleet[0].admin("/"), WIDE).await;
    let ends = Instant::now() + WORKS_FOR;
    while Instant::now() < ends {
        count_orders(&upstream);
        sleep(Duration::from_secs(1)).await;
    }
    page.shows(&[
        "The fleet, 2 replicas",
        "of the fleet",
        "acme",
        "umbrella",
        "interactive",
        "batch",
        "nightly",
        "reports",
    ])
    .await;
    page.picture_of(&card("openai"), &pictures.join("share.png")).await;
    page.picture_of(&card("tenants"), &pictures.join("tenants.png")).await;

    upstream.reply("/orders", Reply::status(429).header("retry-after", "8"));
    page.shows(&["Paused: the upstream answered 429", "orders paused"]).await;
    page.until("document.querySelector('figure[data-chart=apart][data-limiter=orders]').hidden === false")
        .await;
    let apart = fleet[0].metrics().await.sum("weir_limiter_upstream_apart_permits", &[("limiter", "orders")]);
    assert!(apart > 0.0, "others use the quota, too");
    page.picture_of(&card("orders"), &pictures.join("paused.png")).await;
    upstream.reply("/orders", Reply::status(200));

    let refused = || {
        chat.statuses()
            .into_iter()
            .filter(|(status, _)| *status != 200)
            .map(|(_, count)| count)
            .sum::<usize>()
    };
    let refused_before = refused();
    redis.freeze(true);
    page.shows(&["store down", "each replica enforces its share"]).await;
    page.picture_of("main", &pictures.join("outage.png")).await;
    redis.freeze(false);
    page.shows(&["store up"]).await;
    assert_eq!(refused(), refused_before, "{:?}", chat.statuses());
    fleet[0].reload(&config(&redis, &upstream).replace("600/1h", "700/1h")).await;
    page.shows(&["of 700", "Routes of this replica", "Who uses the quota, this hour", "reloaded"]).await;
    sleep(Duration::from_secs(10)).await;
    page.picture(&wide).await;
    assert_eq!(page.close().await, [""; 0]);

    let mut page = Page::open(&fleet[0].admin("/"), DARK_PHONE).await;
    page.shows(&["The fleet, 2 replicas", "acme"]).await;
    page.picture_of(&card("tenants"), &phone).await;
    assert_eq!(page.close().await, [""; 0]);
}
