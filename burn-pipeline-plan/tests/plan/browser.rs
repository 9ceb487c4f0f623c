//! The page in a real browser, driven by events: `cargo test -p burn-pipeline-plan --test plan browser -- --ignored`.
//! Needs Chromium as `chromium`, or at the path in `CHROMIUM`.

use super::page::{named, plan, profile, step};
use burn_pipeline_plan::page::{Choice, Choices, Page};
use burn_pipeline_plan::planner::{Request, Workload, best_plan};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// A script that precedes the rest of the page, so that no error is missed.
const ERRORS: &str = r#"<script>
window.failures = [];
window.onerror = (message) => { failures.push(String(message)); };
console.error = console.warn = (...said) => { failures.push(said.join(" ")); };
</script>"#;

/// Helpers for the scripts of the tests.
const HANDS: &str = r##"
const frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
const timeline = (at) => document.querySelectorAll("#tracks canvas")[at];
const point = (canvas, kind, x, y, more = {}) => {
    const box = canvas.getBoundingClientRect();
    canvas.dispatchEvent(new PointerEvent(kind, { pointerId: 1, clientX: box.left + x, clientY: box.top + y, bubbles: true, ...more }));
};
const wheel = (canvas, x, delta) => {
    const box = canvas.getBoundingClientRect();
    canvas.dispatchEvent(new WheelEvent("wheel", { clientX: box.left + x, clientY: box.top + 30, deltaY: delta, ctrlKey: true, bubbles: true, cancelable: true }));
};
const key = (canvas, name) => canvas.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true }));
const tip = () => document.getElementById("tip").hidden ? "" : document.getElementById("tip").textContent;
const pixels = (canvas) => { const all = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data; let sum = 0; for (let i = 0; i < all.length; i += 1) sum = (sum * 31 + all[i]) % 1000000007; return sum; };
"##;

/// A separate browser with a window of this size.
fn chromium(name: &str, size: &str, more: &[&str]) -> Command {
    let mut command = Command::new(std::env::var("CHROMIUM").unwrap_or_else(|_| "chromium".into()));
    let profile = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("browser-{name}"));
    command.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]);
    command.arg(format!("--user-data-dir={}", profile.display())).arg(format!("--window-size={size}"));
    command.args(more).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Runs a script on the page, in a window of this size, and returns the script's value. Fails if the page writes to
/// its console.
fn drive(page: &Page, name: &str, size: &str, script: &str) -> Value {
    let run = format!(
        r#"<script>window.addEventListener("load", async () => {{ {HANDS}
        let value; try {{ await frame(); value = await (async () => {{ {script} }})(); }} catch (error) {{ failures.push(String(error)); }}
        fetch("/said", {{ method: "POST", body: JSON.stringify({{ value, failures }}) }});
        }});</script></body>"#
    );
    let html = page.html().replace("<head>", &format!("<head>{ERRORS}")).replace("</body>", &run);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/", listener.local_addr().unwrap());
    let (says, said) = channel();
    std::thread::spawn(move || {
        // A browser also opens connections that it does not use.
        for stream in listener.incoming().flatten() {
            let (html, says) = (html.clone(), says.clone());
            std::thread::spawn(move || serve(stream, &html, &says));
        }
    });
    let mut browser = chromium(name, size, &[]).arg(address).spawn().expect("Chromium, or what CHROMIUM names, starts");
    let said = said.recv_timeout(Duration::from_secs(60));
    browser.kill().unwrap();
    browser.wait().unwrap();
    let said: Value = serde_json::from_str(&said.expect("the script ends")).unwrap();
    assert_eq!(said["failures"], Value::Array(Vec::new()), "{name}");
    said["value"].clone()
}

/// Answers one request: with the page, or with an empty answer to the script's result.
fn serve(stream: TcpStream, html: &str, says: &Sender<String>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let (mut request, mut length) = (String::new(), 0);
    reader.read_line(&mut request)?;
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? <= 2 {
            break;
        }
        if let Some(bytes) = header.to_lowercase().strip_prefix("content-length:") {
            length = bytes.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let answer = if request.starts_with("POST") { "" } else { html };
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n", answer.len());
    reader.get_mut().write_all(format!("{head}{answer}").as_bytes())?;
    if request.starts_with("POST") {
        let _ = says.send(String::from_utf8(body).unwrap());
    }
    Ok(())
}

/// A page with a predicted and a measured timeline, memory under a cap, and choices.
fn whole_page() -> Page {
    let plan = plan("1F1B", 4, 8).with_transfers().unwrap();
    let predicted = step(&plan);
    let mut measured = predicted.track("measured");
    for event in &mut measured.events {
        (event.start, event.end) = (event.start * 1.1, event.end * 1.1 - 0.05 * (event.end - event.start));
    }
    let layers = burn_pipeline_plan::cost::Layers::of_profile(&profile(&plan)).unwrap();
    let choices = Choices::from(
        &best_plan(&Request::new(vec![Workload::new(8, layers)], 4, profile(&plan).links().clone())).unwrap(),
    );
    let page = Page::new("1F1B, 4 ranks").costs(profile(&plan)).simulation("predicted", &predicted);
    page.track(&measured).cap(18e6).choices(choices)
}

#[test]
#[ignore = "needs Chromium"]
fn hover_zoom_and_keys_work_and_nothing_fails() {
    let script = r#"
        const canvas = timeline(0), first = pixels(canvas);
        point(canvas, "pointermove", canvas.clientWidth * .5, 25);
        const hovered = tip();
        point(canvas, "pointerleave", 0, 0);
        const left = tip();
        wheel(canvas, canvas.clientWidth * .5, -400);
        await frame();
        const zoomed = pixels(canvas), other = pixels(timeline(1));
        document.getElementById("all").click();
        await frame();
        const back = pixels(canvas) === first;
        point(canvas, "pointerdown", 300, 25); point(canvas, "pointermove", 200, 25); point(canvas, "pointerup", 200, 25);
        canvas.focus();
        key(canvas, "ArrowRight"); key(canvas, "ArrowRight");
        const walked = tip();
        key(canvas, "ArrowDown"); key(canvas, "End");
        const last = document.getElementById("live").textContent;
        key(canvas, "+");
        await frame();
        const keyed = pixels(canvas) !== first;
        return { hovered, left, changed: zoomed !== first, other: other !== 0, back, walked, last, keyed,
            tables: document.querySelectorAll("table").length, circles: document.querySelectorAll("circle").length,
            wide: document.documentElement.scrollWidth <= innerWidth };
    "#;
    for size in ["1280,900", "390,800"] {
        let said = drive(&whole_page(), &format!("driven-{size}"), size, script);
        let text = |name: &str| said[name].as_str().unwrap().to_owned();
        assert!(text("hovered").starts_with("0") && text("hovered").contains("rank 0, "), "{said}");
        assert_eq!(text("left"), "");
        for name in ["changed", "other", "back", "keyed", "wide"] {
            assert_eq!(said[name], true, "{name} at {size}: {said}");
        }
        assert!(text("walked").starts_with("0F1: F forward"), "{said}");
        assert!(text("last").starts_with("1B7: B backward") && text("last").contains("the rank holds"), "{said}");
        assert!(said["tables"].as_u64().unwrap() >= 5 && said["circles"].as_u64().unwrap() > 1, "{said}");
    }
}

#[test]
#[ignore = "needs Chromium"]
fn names_that_look_like_scripts_and_numbers_that_are_none_are_shown() {
    let name = "<!--<script></script><b>";
    let unknown = Choice { name: name.into(), seconds: f64::NAN, peak: f64::INFINITY, pareto: false };
    let choices = Choices { unit: name.into(), usable: vec![unknown], dropped: Vec::new() };
    let page = named(name).cap(f64::INFINITY).choices(choices);
    let script = r##"return [document.title, document.querySelectorAll("#tracks canvas").length, document.querySelector("#table td").textContent,
        document.querySelector("#table").textContent.includes("not known"), document.querySelectorAll("b").length];"##;
    let said = drive(&page, "named", "1280,900", script);
    assert_eq!(said, serde_json::json!([name, 2, name, true, 0]));
}

#[test]
#[ignore = "needs Chromium"]
fn the_reason_for_a_wait_and_the_bytes_of_a_transfer_are_told() {
    let script = r#"
        const canvas = timeline(1); canvas.focus();
        const said = [];
        for (let n = 0; n < 12; n++) { key(canvas, "ArrowRight"); said.push(document.getElementById("live").textContent); }
        const moving = [];
        for (let x = 50; x < canvas.clientWidth; x += 2) { point(timeline(0), "pointermove", x, 20 + 34 + 25); moving.push(tip()); }
        return { said, moving: moving.filter((text) => text) };
    "#;
    let said = drive(&whole_page(), "told", "1280,900", script);
    let any =
        |name: &str, part: &str| said[name].as_array().unwrap().iter().any(|s| s.as_str().unwrap().contains(part));
    assert!(any("said", "waited before: ") && any("said", "gradient"), "{said}");
    assert!(any("moving", "200 kB") && any("moving", "RECV_F"), "{said}");
}

#[test]
#[ignore = "needs Chromium"]
fn a_page_of_100_000_actions_stays_fast() {
    let plan = plan("1F1B", 8, 6250);
    let step = step(&plan);
    assert_eq!(step.events.len(), 100_000);
    let page = Page::new("large").simulation("predicted", &step);
    let script = r#"
        const opened = performance.now(), canvas = timeline(0), frames = 120;
        for (let n = 0; n < frames; n++) {
            wheel(canvas, 600, n % 40 < 20 ? -200 : 200);
            point(canvas, "pointermove", 100 + n * 5, 40);
            await frame();
        }
        const each = (performance.now() - opened) / frames;
        key(canvas, "End");
        return { opened, each, last: tip() };
    "#;
    let said = drive(&page, "large", "1280,900", script);
    assert!(said["last"].as_str().unwrap().starts_with("0B6249"), "{said}");
    // Milliseconds; `frame` takes two of the browser's frames.
    println!("opened in {} ms, {} ms a movement", said["opened"], said["each"]);
    assert!(said["opened"].as_f64().unwrap() < 10_000.0, "{said}");
    assert!(said["each"].as_f64().unwrap() < 200.0, "{said}");
}

/// Takes screenshots for people to look at, into `SHOTS`.
#[test]
#[ignore = "needs Chromium"]
fn screenshots() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let page = folder.join("report.html");
    std::fs::write(&page, whole_page().html()).unwrap();
    let shots = std::env::var("SHOTS").map_or(folder, PathBuf::from);
    for (shot, size, more) in [
        ("desktop", "1280,2000", "--force-device-scale-factor=1"),
        ("phone", "390,2600", "--force-device-scale-factor=1"),
        ("dark", "1280,2000", "--blink-settings=preferredColorScheme=0"),
    ] {
        let path = shots.join(format!("report-{shot}.png"));
        let _ = std::fs::remove_file(&path);
        let file = format!("--screenshot={}", path.display());
        let mut browser = chromium(shot, size, &["--virtual-time-budget=5000", &file, more]);
        browser.arg(format!("file://{}", page.display())).status().expect("Chromium, or what CHROMIUM names, starts");
        assert!(std::fs::metadata(&path).unwrap().len() > 10_000, "{shot}");
    }
}
