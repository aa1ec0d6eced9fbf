//! Debian's headless Chromium in a testbed's network, driven over its debugging pipe.

use std::{
    fs::{File, OpenOptions},
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use base64::Engine as _;
use nix::sys::stat::Mode;
use serde_json::{Value, json};

use crate::{Daemon, Testbed};

/// The timeout of one command.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// A browser with one page.
#[derive(Debug)]
pub struct Browser {
    _process: Daemon,
    commands: File,
    messages: Receiver<Value>,
    session: String,
    last: u64,
    complaints: Vec<String>,
    requests: Vec<String>,
}

impl Browser {
    /// Starts it in the node's network namespace, on an empty page.
    ///
    /// # Panics
    /// When it does not start. `scripts/install.sh test` installs it.
    #[must_use]
    pub fn new(testbed: &Testbed) -> Self {
        let dir = testbed.dir().join("chromium");
        std::fs::create_dir_all(&dir).expect("a directory can be created");
        let (to, from) = (dir.join("to"), dir.join("from"));
        for pipe in [&to, &from] {
            nix::unistd::mkfifo(pipe, Mode::S_IRWXU).expect("a pipe can be made");
        }
        // The browser reads commands from descriptor 3 and answers on 4.
        let line = format!(
            "exec chromium --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
             --disable-background-networking --hide-scrollbars --user-data-dir={} --remote-debugging-pipe about:blank 3<{} 4>{}",
            dir.join("profile").display(),
            to.display(),
            from.display()
        );
        let mut command = testbed.command("sh");
        command.args(["-c", &line]).env("HOME", &dir);
        let process = Daemon::start("chromium", &mut command, &dir.join("log")).expect("chromium");
        let commands = OpenOptions::new().write(true).open(&to).expect("the pipe to the browser");
        let answers = File::open(&from).expect("the pipe from the browser");
        let (tell, messages) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(answers).split(0).map_while(Result::ok) {
                let Ok(message) = serde_json::from_slice(&message) else { return };
                if tell.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Self {
            _process: process,
            commands,
            messages,
            session: String::new(),
            last: 0,
            complaints: Vec::new(),
            requests: Vec::new(),
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}))["targetId"].clone();
        let session = browser.call("Target.attachToTarget", json!({"targetId": target, "flatten": true}));
        session["sessionId"].as_str().expect("a session").clone_into(&mut browser.session);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Sends one command and waits for its result.
    ///
    /// # Panics
    /// When the browser rejects it, exits, or does not answer.
    #[track_caller]
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        match self.try_call(method, params) {
            Ok(result) => result,
            Err(error) => panic!("{method}: {error:#}"),
        }
    }

    fn try_call(&mut self, method: &str, params: Value) -> anyhow::Result<Value> {
        self.last += 1;
        let mut command = json!({"id": self.last, "method": method, "params": params});
        if !self.session.is_empty() {
            command["sessionId"] = json!(self.session);
        }
        write!(self.commands, "{command}\0").context("the browser takes no commands any more")?;
        let deadline = Instant::now() + DEFAULT_TIMEOUT;
        loop {
            let message = match self.messages.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) => anyhow::bail!("no answer within {DEFAULT_TIMEOUT:?}"),
                Err(RecvTimeoutError::Disconnected) => anyhow::bail!("the browser has ended"),
            };
            if message["id"] == self.last {
                anyhow::ensure!(message["error"].is_null(), "{}", message["error"]);
                return Ok(message["result"].clone());
            }
            self.note(&message);
        }
    }

    /// Records console messages and requests of a page.
    fn note(&mut self, message: &Value) {
        let params = &message["params"];
        match message["method"].as_str().unwrap_or("") {
            "Runtime.exceptionThrown" => self.complaints.push(params["exceptionDetails"].to_string()),
            "Runtime.consoleAPICalled" if matches!(params["type"].as_str(), Some("error" | "warning" | "assert")) => {
                self.complaints.push(params["args"].to_string());
            }
            "Log.entryAdded" if matches!(params["entry"]["level"].as_str(), Some("error" | "warning")) => {
                self.complaints.push(params["entry"].to_string());
            }
            "Network.requestWillBeSent" => {
                self.requests.push(params["request"]["url"].as_str().unwrap_or_default().to_owned());
            }
            _ => {}
        }
    }

    /// Errors and warnings of all pages so far.
    #[must_use]
    pub fn complaints(&self) -> &[String] {
        &self.complaints
    }

    /// All requested URLs so far.
    #[must_use]
    pub fn requests(&self) -> &[String] {
        &self.requests
    }

    /// Sets the screen size, the emulation of a phone, and the preferred colour scheme.
    pub fn screen(&mut self, width: u32, height: u32, phone: bool, scheme: &str) {
        let scale = if phone { 2 } else { 1 };
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": scale, "mobile": phone});
        self.call("Emulation.setDeviceMetricsOverride", metrics);
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features}));
    }

    /// Opens a URL.
    ///
    /// # Panics
    /// When it cannot be loaded.
    pub fn open(&mut self, address: &str) {
        let opened = self.call("Page.navigate", json!({"url": address}));
        assert!(opened["errorText"].is_null(), "{address}: {}", opened["errorText"]);
    }

    /// Evaluates an expression in the page.
    ///
    /// # Errors
    /// When it throws.
    pub fn value(&mut self, expression: &str) -> anyhow::Result<Value> {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let result = self.try_call("Runtime.evaluate", params)?;
        anyhow::ensure!(result["exceptionDetails"].is_null(), "{expression}: {}", result["exceptionDetails"]);
        Ok(result["result"]["value"].clone())
    }

    /// Saves a screenshot of the whole page next to the tests' output.
    ///
    /// # Panics
    /// When it cannot be taken or written.
    pub fn picture(&mut self, name: &str) {
        let shot = self.call("Page.captureScreenshot", json!({"format": "png", "captureBeyondViewport": true}));
        let data = shot["data"].as_str().unwrap_or_default();
        let bytes = base64::engine::general_purpose::STANDARD.decode(data).expect("a picture");
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/screenshots");
        std::fs::create_dir_all(&dir).expect("a directory can be created");
        std::fs::write(dir.join(format!("{name}.png")), bytes).expect("a picture can be kept");
    }
}
