//! A page in a real Chromium, by its DevTools protocol (<https://chromedevtools.github.io/devtools-protocol/>) over a pipe.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::{PATIENCE, poll_for};

/// The browser reads commands from descriptor 3 and answers on 4.
const START: &str = "exec chromium \"$@\" 3<&0 4>&1 </dev/null >/dev/null";

/// A browser that starts for the first time reads several hundred megabytes.
const ANSWERED_IN: Duration = Duration::from_secs(60);

/// A screen on which the page is shown.
#[derive(Clone, Copy)]
pub(crate) struct Screen {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) is_phone: bool,
    pub(crate) is_dark: bool,
}

/// A page. Dropping it ends the browser.
pub(crate) struct Page {
    browser: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    _profile: TempDir,
    session: Option<String>,
    calls: u64,
    /// The errors of the page's console.
    errors: Vec<String>,
}

impl Page {
    pub(crate) async fn open(url: &str, screen: Screen) -> Page {
        let profile = TempDir::with_prefix("weir-page").expect("a directory");
        let mut browser = Command::new("sh");
        browser.args([
            "-c",
            START,
            "sh",
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
        ]);
        browser.args(["--remote-debugging-pipe", &format!("--user-data-dir={}", profile.path().display())]);
        browser.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut browser = browser.spawn().expect("a shell");
        let (Some(commands), Some(answers)) = (browser.stdin.take(), browser.stdout.take()) else {
            unreachable!("both are piped");
        };
        let answers = BufReader::new(answers);
        let (session, calls, errors) = (None, 0, Vec::new());
        let mut page = Page { browser, commands, answers, _profile: profile, session, calls, errors };
        let target = page.call("Target.createTarget", json!({"url": "about:blank"})).await;
        let attached = json!({"targetId": target["targetId"], "flatten": true});
        let attached = page.call("Target.attachToTarget", attached).await;
        page.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Runtime.enable", "Log.enable"] {
            page.call(domain, json!({})).await;
        }
        let Screen { width, height, is_phone, is_dark } = screen;
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone});
        page.call("Emulation.setDeviceMetricsOverride", size).await;
        // They would take their width from the page, but not from its pictures.
        page.call("Emulation.setScrollbarsHidden", json!({"hidden": true})).await;
        let scheme = if is_dark { "dark" } else { "light" };
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        page.call("Emulation.setEmulatedMedia", media).await;
        page.call("Page.navigate", json!({"url": url})).await;
        page.until("document.readyState === 'complete'").await;
        page
    }

    /// Carries out a command and returns its result.
    async fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.calls += 1;
        let mut command = json!({"id": self.calls, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            command["sessionId"] = json!(session);
        }
        self.commands.write_all(format!("{command}\0").as_bytes()).await.expect("a browser");
        loop {
            let mut answer = Vec::new();
            let read = timeout(ANSWERED_IN, self.answers.read_until(0, &mut answer)).await;
            read.unwrap_or_else(|_| panic!("{method} is not answered")).expect("an answer");
            assert_eq!(
                answer.pop(),
                Some(0),
                "the browser ended: is chromium there? scripts/dashboard brings it"
            );
            let mut answer: Value = serde_json::from_slice(&answer).expect("JSON");
            if answer["id"] == self.calls {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].take();
            }
            let event = &answer["params"];
            match answer["method"].as_str() {
                Some("Runtime.exceptionThrown") => self.errors.push(event["exceptionDetails"].to_string()),
                Some("Log.entryAdded") if event["entry"]["level"] == "error" => {
                    self.errors.push(event["entry"].to_string());
                }
                _ => {}
            }
        }
    }

    /// Returns the value of an expression in the page.
    pub(crate) async fn value(&mut self, expression: &str) -> Value {
        let parameters = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let mut answer = self.call("Runtime.evaluate", parameters).await;
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {}", answer["exceptionDetails"]);
        answer["result"]["value"].take()
    }

    /// Waits until an expression is true in the page.
    pub(crate) async fn until(&mut self, expression: &str) {
        poll_for(expression, async || (self.value(expression).await == true).then_some(())).await;
    }

    /// Waits until the page shows all of these texts.
    pub(crate) async fn shows(&mut self, all: &[&str]) {
        for text in all {
            self.until(&format!("document.body.innerText.includes({})", json!(text))).await;
        }
    }

    /// Moves the focus to the element with this label, and presses Enter.
    pub(crate) async fn press(&mut self, label: &str) {
        let found = format!("document.querySelector({})", json!(format!("[aria-label=\"{label}\"]")));
        self.until(&format!("{found} !== null")).await;
        self.value(&format!("{found}.focus()")).await;
        self.enter().await;
    }

    /// Presses Enter on the focused element.
    pub(crate) async fn enter(&mut self) {
        let key = json!({"type": "keyDown", "key": "Enter", "code": "Enter", "text": "\r", "windowsVirtualKeyCode": 13});
        self.call("Input.dispatchKeyEvent", key).await;
        let key = json!({"type": "keyUp", "key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13});
        self.call("Input.dispatchKeyEvent", key).await;
    }

    /// Types text in place of the selection, or behind the cursor.
    pub(crate) async fn write(&mut self, text: &str) {
        self.call("Input.insertText", json!({"text": text})).await;
    }

    /// Returns role and name of everything that a screen reader reads.
    pub(crate) async fn spoken(&mut self) -> Vec<(String, String)> {
        let tree = self.call("Accessibility.getFullAXTree", json!({})).await;
        let nodes = tree["nodes"].as_array().into_iter().flatten();
        let text = |value: &Value| value["value"].as_str().unwrap_or_default().to_owned();
        nodes
            .filter(|node| node["ignored"] == false)
            .map(|node| (text(&node["role"]), text(&node["name"])))
            .collect()
    }

    /// Saves a picture of the page in its full height.
    pub(crate) async fn picture(&mut self, path: &Path) {
        self.capture(json!({"captureBeyondViewport": true}), path).await;
    }

    /// Saves a picture of the element that a selector finds.
    pub(crate) async fn picture_of(&mut self, selector: &str, path: &Path) {
        let place = format!(
            "(() => {{ const box = document.querySelector({}).getBoundingClientRect();
             return {{ x: box.x + scrollX, y: box.y + scrollY, width: box.width, height: box.height, scale: 1 }}; }})()",
            json!(selector)
        );
        let clip = self.value(&place).await;
        self.capture(json!({"captureBeyondViewport": true, "clip": clip}), path).await;
    }

    async fn capture(&mut self, parameters: Value, path: &Path) {
        let answer = self.call("Page.captureScreenshot", parameters).await;
        let picture = answer["data"].as_str().expect("a picture");
        fs::write(path, STANDARD.decode(picture).expect("base64")).expect("a file");
    }

    /// Ends the browser and returns the errors of the page.
    pub(crate) async fn close(mut self) -> Vec<String> {
        self.call("Browser.close", json!({})).await;
        timeout(PATIENCE, self.browser.wait()).await.expect("it ends").expect("a process");
        std::mem::take(&mut self.errors)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // The browser writes to its profile until it has ended.
        self.browser.start_kill().ok();
        let end = Instant::now() + PATIENCE;
        while matches!(self.browser.try_wait(), Ok(None)) && Instant::now() < end {
            thread::sleep(Duration::from_millis(5));
        }
    }
}
