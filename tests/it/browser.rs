//! The dashboard in Debian's Chromium: its appearance on several screens, and its behaviour. `scripts/dashboard` runs
//! these tests; the pictures are in `target/dashboard`.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::page::{Page, Screen};
use crate::support::{Reply, Upstream, Weir, closed_port, lane, one_limiter};

const WIDE: Screen = Screen { width: 1280, height: 900, is_phone: false, is_dark: false };
const WIDEST: Screen = Screen { width: 1600, ..WIDE };
const DARK: Screen = Screen { is_dark: true, ..WIDEST };
const PHONE: Screen = Screen { width: 390, height: 844, is_phone: true, is_dark: false };
const DARK_PHONE: Screen = Screen { is_dark: true, ..PHONE };

/// A script that lists texts whose contrast is below 4.5 (WCAG 2.2, 1.4.3), each with its contrast.
const FAINT: &str = "(() => {
  const channels = (color) => color.match(/[0-9.]+/g).map(Number);
  const light = (color) => {
    const [red, green, blue] = channels(color).map((value) => value / 255).map((value) =>
      value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const color = getComputedStyle(node).backgroundColor;
      if (channels(color)[3] !== 0) return color;
    }
    return 'rgb(255, 255, 255)';
  };
  const texts = [...document.body.querySelectorAll('*')].filter((node) => node.checkVisibility()
    && [...node.childNodes].some((child) => child.nodeType === Node.TEXT_NODE && child.data.trim()));
  if (texts.length < 20) return ['only ' + texts.length + ' texts'];
  return texts.map((node) => {
    const [one, other] = [light(getComputedStyle(node).color), light(ground(node))];
    return { text: node.textContent, contrast: (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05) };
  }).filter(({ contrast }) => !(contrast >= 4.5));
})()";

/// The roles that must have a name for people who cannot see the page.
const NAMED: [&str; 6] = ["button", "searchbox", "combobox", "progressbar", "image", "link"];

#[tokio::test]
#[ignore = "needs chromium: scripts/dashboard"]
async fn it_is_seen_on_every_screen() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let (url, away) = (upstream.url(), format!("http://127.0.0.1:{}", closed_port()));
    let weir = Weir::start(&format!(
        "store: memory\nlimiters:\n  tight: {{limits: [3/1m, 100/1h]}}\n  watched: {{limits: [9/1s], mode: shadow}}\n  \
         refused: {{limits: [9/1s], queue: {{timeout: 5m, max_waiting: 10}}}}\n\
         routes:\n  - {{name: t, match: {{path: /t}}, upstream: \"{url}\", limiter: tight}}\n  \
         - {{name: w, match: {{path: /w}}, upstream: \"{url}\", limiter: watched}}\n  \
         - {{name: r, match: {{path: /r}}, upstream: \"{url}\", limiter: refused}}\n  \
         - {{name: away, match: {{path: /away}}, upstream: \"{away}\", limiters: off, breaker: {{failures: 1, for: 10m}}}}\n  \
         - {{name: due, match: {{path: /due}}, upstream: \"{away}\", limiters: off, breaker: {{failures: 1, for: 1s}}}}\n"
    ))
    .await;
    let host = weir.ask("/api/replicas").await.json()["replicas"][0]["host"].as_str().map(str::to_owned);
    let host = host.expect("a name");
    upstream.reply("/r", Reply::status(429).header("retry-after", "120"));
    assert_eq!(weir.get("/r").await.status, 429);
    let _pending = weir.begin(1, "/r");
    for status in [200, 200, 200, 429] {
        assert_eq!(weir.get("/t").await.status, status);
    }
    assert_eq!(weir.tell_with("/api/limiters/tight/pause", "{\"for\": \"10m\"}").await.status, 200);
    for path in ["/away", "/due"] {
        assert_eq!(weir.get(path).await.status, 502);
    }
    let pictures = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/dashboard");
    fs::create_dir_all(&pictures).expect("a directory");
    for (name, screen) in
        [("wide", WIDE), ("widest", WIDEST), ("dark", DARK), ("phone", PHONE), ("dark-phone", DARK_PHONE)]
    {
        let mut page = Page::open(&weir.admin("/"), screen).await;
        page.shows(&[
            "live",
            "store up",
            "0 left of 3",
            "97 left of 100",
            "shadow",
            &format!("Paused: by hand (through {host})"),
            &format!("Paused: the upstream answered 429 (to {host})"),
            "1 of 10",
            "s now",
            "Upstreams that cannot be reached",
            "in 9 min ",
            "with the next request",
            "(this one)",
            &host,
        ])
        .await;
        page.picture(&pictures.join(format!("{name}.png"))).await;
        let ground = page.value("getComputedStyle(document.body).backgroundColor").await;
        assert_eq!(ground == "rgb(20, 23, 28)", screen.is_dark, "{name}: {ground}");
        let width = page.value("document.documentElement.scrollWidth").await;
        assert_eq!(width, screen.width, "{name}: it is not as wide as the screen");
        assert_eq!(page.value(FAINT).await, Value::Array(Vec::new()), "{name}");
        let spoken = page.spoken().await;
        for role in NAMED {
            let mut names =
                spoken.iter().filter(|(of, _)| of == role).map(|(_, name)| name.as_str()).peekable();
            assert!(
                names.peek().is_some() && names.all(|name| !name.is_empty()),
                "{name}: {role} of {spoken:?}"
            );
        }
        assert_eq!(page.close().await, [""; 0], "{name}");
    }
}

#[tokio::test]
#[ignore = "needs chromium: scripts/dashboard"]
async fn it_pauses_resumes_resets_finds_and_reloads_by_keyboard() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = Weir::start(&one_limiter("memory", "{limits: [3/1h]}", &upstream)).await;
    assert_eq!(weir.get("/").await.status, 200);
    let mut page = Page::open(&weir.admin("/"), WIDE).await;
    page.shows(&["2 left of 3"]).await;

    page.press("Pause api").await;
    page.shows(&["Pause api"]).await;
    // The focus is in the field.
    page.value("document.activeElement.select()").await;
    page.write("7m").await;
    page.enter().await;
    page.shows(&["Paused: by hand"]).await;
    let paused = weir.ask("/api/limiters/api").await.json();
    assert_eq!(paused["paused"]["reason"], "by_hand", "{paused}");
    assert_eq!(weir.get("/").await.header("weir-error"), Some("paused"));
    page.shows(&["paused for 6 min"]).await;

    page.press("Resume api").await;
    page.until("!document.body.innerText.includes('Paused: by hand')").await;
    assert_eq!(weir.get("/").await.status, 200);
    page.shows(&["1 left of 3"]).await;

    page.press("Reset api").await;
    page.shows(&["All replicas forget the used permits"]).await;
    page.enter().await;
    page.shows(&["3 left of 3"]).await;

    page.value("document.getElementById('find').focus()").await;
    page.write("nothing like it").await;
    page.shows(&["No limiter matches."]).await;
    page.until("document.querySelector('article') === null").await;

    page.value("document.getElementById('take-up').focus()").await;
    page.enter().await;
    page.shows(&["reloaded "]).await;
    assert_eq!(page.close().await, [""; 0]);
}

#[tokio::test]
#[ignore = "needs chromium: scripts/dashboard"]
async fn it_asks_for_the_token_and_reports_a_wrong_one() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let listen = "listen: 127.0.0.1:0\nadmin: {listen: 127.0.0.1:0, token: the-right-one-of-them}";
    let limiter = one_limiter("memory", "{limits: [3/1h]}", &upstream);
    let weir = Weir::start_whole(&format!("{listen}\n{limiter}")).await;
    let mut page = Page::open(&weir.admin("/"), PHONE).await;
    page.shows(&["The token of admin.token"]).await;
    page.write("another-one").await;
    page.enter().await;
    page.shows(&["The token is wrong."]).await;
    page.write("the-right-one-of-them").await;
    page.enter().await;
    page.shows(&["live", "3 left of 3"]).await;
    page.press("Pause api").await;
    page.enter().await;
    page.shows(&["Paused: by hand"]).await;
    // The browser itself reports each answer with status 401.
    let errors = page.close().await;
    assert!(errors.iter().all(|error| error.contains("401")), "{errors:?}");
}

#[tokio::test]
#[ignore = "needs chromium: scripts/dashboard"]
async fn its_charts_show_use_and_limit_marks_clients_and_routes() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir =
        Weir::start(&one_limiter("memory", "{limits: [40/1h, 20/1s], queue: {timeout: 5s}}", &upstream))
            .await;
    for _ in 0..30 {
        assert_eq!(weir.get("/").await.status, 200);
    }
    for (name, screen) in [("charts", WIDE), ("charts-phone", DARK_PHONE)] {
        let mut page = Page::open(&weir.admin("/"), screen).await;
        page.shows(&["10 left of 40", "limit 20/1s", "p50, p95, p99", "each replica enforces its share"])
            .await;
        page.shows(&[
            "The fleet, 1 replica",
            "Who uses the quota, this hour",
            "none",
            "Routes of this replica",
            "200: ",
        ])
        .await;
        let chart = "document.querySelector('figure[data-chart=use][data-limiter=api]')";
        let size = format!(
            "(() => {{ const box = {chart}.querySelector('svg').getBoundingClientRect(); return box.width >= 120 && box.height >= 50; }})()"
        );
        assert_eq!(page.value(&size).await, true, "{name}");
        let label = page.value(&format!("{chart}.getAttribute('aria-label')")).await;
        assert!(label.as_str().is_some_and(|label| label.contains("api")), "{label}");
        let line = |of: &str| format!("{chart}.querySelector('{of}').getAttribute('d')");
        page.until(&format!("{}.includes('L')", line("path.granted"))).await;
        let limit = page.value(&line("path[data-line=limit]")).await;
        assert!(limit.as_str().is_some_and(|limit| limit.starts_with('M') && limit.contains('H')), "{limit}");
        if name == "charts" {
            assert_eq!(weir.tell_with("/api/limiters/api/pause", "{\"for\": \"10m\"}").await.status, 200);
        }
        // The mark outlives the page.
        page.shows(&["api paused"]).await;
        page.until(&format!("{chart}.querySelector('path.mark.pause') !== null")).await;
        page.picture(&Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("target/dashboard/{name}.png")))
            .await;
        assert_eq!(page.value(FAINT).await, Value::Array(Vec::new()), "{name}");
        assert_eq!(page.value("document.documentElement.scrollWidth").await, screen.width, "{name}");
        assert_eq!(page.close().await, [""; 0], "{name}");
    }
}
