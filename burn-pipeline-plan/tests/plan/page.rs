//! The page: its contents compared with the simulation, and its behaviour in a browser.

use burn_pipeline_plan::cost::{Profile, StageCost, UniformCosts};
use burn_pipeline_plan::page::{Choice, Choices, Page};
use burn_pipeline_plan::plan::{Action, Plan};
use burn_pipeline_plan::schedule::{Size, by_name};
use burn_pipeline_plan::simulate::{IdleCause, SimulateOptions, Simulation, simulate};
use burn_pipeline_plan::trace::{Event, Track, chrome, read_chrome};
use proptest::prelude::{Just, prop, prop_oneof};
use proptest::test_runner::Config;
use proptest::{prop_assert_eq, proptest};
use serde_json::Value;

pub(crate) fn plan(schedule: &str, ranks: usize, microbatches: usize) -> Plan {
    let size = Size::new(ranks, microbatches);
    let build = |size| by_name(schedule).unwrap().build(size);
    build(size).or_else(|_| build(size.with_chunks(2))).unwrap()
}

pub(crate) fn profile(plan: &Plan) -> Profile {
    let uniform = Profile::uniform(plan.placement(), UniformCosts::new(1.0, 1.0, 1.0).with_transfer(0.125)).unwrap();
    let bytes = |cost: &StageCost| StageCost { activation_bytes: 3e6, weight_bytes: 5e6, message_bytes: 2e5, ..*cost };
    Profile::new(uniform.stages().iter().map(bytes).collect(), uniform.links().clone()).unwrap()
}

pub(crate) fn step(plan: &Plan) -> Simulation {
    simulate(plan, &profile(plan), &SimulateOptions::default()).unwrap()
}

/// The data that a page draws.
fn data(html: &str) -> Value {
    let (_, rest) = html.split_once(r#"id="data">"#).unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

fn sum(values: &Value, of: impl Fn(&Value) -> f64) -> f64 {
    values.as_array().unwrap().iter().map(of).sum()
}

#[test]
fn a_page_holds_the_simulation_s_numbers() {
    let plan = plan("ZBH1", 4, 8).with_transfers().unwrap();
    let step = step(&plan);
    let page = data(&Page::new("ZBH1").costs(profile(&plan)).simulation("predicted", &step).html());
    let ranks = &page["timelines"][0]["ranks"];
    let causes: Vec<&str> = page["causes"].as_array().unwrap().iter().map(|cause| cause.as_str().unwrap()).collect();
    let number = |value: &Value| value.as_f64().unwrap();
    for (rank, report) in ranks.as_array().unwrap().iter().zip(&step.ranks) {
        assert!((number(&rank["busy"]) - report.busy).abs() < 1e-9);
        for cause in IdleCause::SIMULATED {
            let is = |idle: &Value| causes[idle[2].as_u64().unwrap() as usize] == cause.to_string();
            let idle = sum(&rank["idle"], |idle| if is(idle) { number(&idle[1]) - number(&idle[0]) } else { 0.0 });
            assert!((idle - report.idle_of(cause)).abs() < 1e-6, "{cause}: {idle}");
        }
        let peak = rank["memory"].as_array().unwrap().iter().map(|point| number(&point[1])).fold(0.0, f64::max);
        assert_eq!(peak, report.peak_bytes);
    }
    let moved = sum(ranks, |rank| sum(&rank["events"], |event| number(&event[5])));
    // Each of 8 microbatches crosses three boundaries twice, and each crossing has a send and a receive.
    assert_eq!(moved, 8.0 * 3.0 * 2.0 * 2.0 * 2e5);
}

#[test]
fn the_page_draws_forwards_backwards_and_pieces_of_the_vocabulary_as_computation() {
    let page = data(&Page::new("1F1B").simulation("predicted", &step(&plan("1F1B", 2, 4))).html());
    let computes = |kind: &&Value| kind["moves"] == Value::Bool(false);
    let kinds = page["kinds"].as_array().unwrap().iter().filter(computes);
    let symbols: Vec<&str> = kinds.filter_map(|kind| kind["words"].as_str()?.split(' ').next()).collect();
    assert_eq!(symbols, ["F", "B", "I", "W", "S"]);
}

#[test]
fn memory_is_in_the_unit_of_its_costs_and_says_where_activations_are_missing() {
    let plan = plan("1F1B", 2, 4);
    let uniform = Profile::uniform(plan.placement(), UniformCosts::new(1.0, 1.0, 1.0)).unwrap();
    let none = |cost: &StageCost| StageCost { activation_bytes: 0.0, weight_bytes: 8.0, ..*cost };
    let weights = Profile::new(uniform.stages().iter().map(none).collect(), uniform.links().clone()).unwrap();
    let said = |page: Page| (data(&page.html())["unit"].clone(), data(&page.html())["activations"].clone());
    let page = Page::new("page").simulation("predicted", &step(&plan));
    assert_eq!(
        said(page.clone().memory_in("rank-microbatches").costs(uniform)),
        ("rank-microbatches".into(), true.into())
    );
    assert_eq!(said(page.costs(weights)), ("bytes".into(), false.into()));
}

/// Parses a script as an HTML parser does, given the page after its opening tag. Returns its text and the rest of the
/// page; `None` if it never ends. Follows the states of the tokenizer in the HTML standard (13.2.5.4 and 13.2.5.15 to
/// 13.2.5.31).
fn script(page: &str) -> Option<(&str, &str)> {
    enum State {
        Data,
        Escaped,
        DoubleEscaped,
    }
    let tag = |at: usize, open: &str| {
        let (name, next) = (page.get(at..at + open.len()), page.as_bytes().get(at + open.len()));
        let ends = matches!(next, Some(b'\t' | b'\n' | b'\r' | 0x0c | b' ' | b'/' | b'>'));
        ends && name.is_some_and(|name| name.eq_ignore_ascii_case(open))
    };
    let (mut state, mut dashes) = (State::Data, 0);
    for (at, letter) in page.char_indices() {
        let (opens, closes) = (tag(at, "<script"), tag(at, "</script"));
        state = match state {
            State::Data if page[at..].starts_with("<!--") => State::Escaped,
            State::Escaped | State::DoubleEscaped if letter == '>' && dashes >= 2 => State::Data,
            State::Escaped if opens => State::DoubleEscaped,
            State::DoubleEscaped if closes => State::Escaped,
            State::Data | State::Escaped if closes => return Some((&page[..at], page[at..].split_once('>')?.1)),
            state => state,
        };
        dashes = if letter == '-' { dashes + 1 } else { 0 };
    }
    None
}

/// The texts of a page's scripts, and the rest of the page after the last one.
fn scripts(page: &str) -> (Vec<&str>, &str) {
    let (mut texts, mut rest) = (Vec::new(), page);
    while let Some((_, behind)) = rest.split_once("<script") {
        let Some((text, behind)) = behind.split_once('>').and_then(|(_, behind)| script(behind)) else {
            return (texts, "a script without an end");
        };
        texts.push(text);
        rest = behind;
    }
    (texts, rest)
}

#[test]
fn the_parser_of_the_tests_reads_scripts_as_browsers_do() {
    for (page, text) in [
        ("a</script>b", Some("a")),
        ("a</scripts></SCRIPT >b", Some("a</scripts>")),
        ("<!--</script>b", Some("<!--")),
        ("<!--<script></script>b", None),
        ("<!--<script></script></script>b", Some("<!--<script></script>")),
        ("<!--<script>--></script>b", Some("<!--<script>-->")),
        ("<!--><script></script>b", Some("<!--><script>")),
        ("<!--<scripts></script>b", Some("<!--<scripts>")),
    ] {
        assert_eq!(script(page).map(|(text, _)| text), text, "{page}");
        assert!(script(page).is_none_or(|(_, rest)| rest == "b"), "{page}");
    }
}

/// A page with this name everywhere that a caller can choose a name.
pub(crate) fn named(name: &str) -> Page {
    let plan = plan("1F1B", 2, 2);
    let choice = Choice { name: name.into(), seconds: 1.0, peak: 1.0, pareto: true };
    let choices = Choices { unit: name.into(), usable: vec![choice], dropped: vec![(name.into(), name.into())] };
    let track = Track { name: name.into(), ..step(&plan).track("") };
    Page::new(name).memory_in(name).simulation(name, &step(&plan)).track(&track).choices(choices)
}

proptest! {
    #![proptest_config(Config { cases: 500, failure_persistence: None, ..Config::default() })]

    #[test]
    fn whatever_a_name_holds_the_page_stays_whole(
        parts in prop::collection::vec(prop_oneof![
            Just("<!--"), Just("-->"), Just("<script"), Just("</script"), Just(">"), Just(" "), Just("<"), Just("/*DATA*/"),
            Just("/*SCRIPT*/"), Just("\u{2028}"), Just("\0"), Just("\\"), Just("\""), Just("&lt;"), Just("</style>"), Just("é"),
        ], 0..8)
    ) {
        let name = parts.concat();
        let (html, plain) = (named(&name).html(), named("plain").html());
        let ((texts, rest), (plain, end)) = (scripts(&html), scripts(&plain));
        // Two scripts: the first is the data, the second the page's own. Then the page ends as it should.
        prop_assert_eq!(texts.len(), 2);
        prop_assert_eq!((texts[1], rest), (plain[1], end));
        let data: Value = serde_json::from_str(texts[0]).unwrap();
        for said in [&data["title"], &data["unit"], &data["timelines"][0]["name"], &data["timelines"][1]["name"],
                     &data["choices"]["unit"], &data["choices"]["usable"][0]["name"], &data["choices"]["dropped"][0][1]] {
            prop_assert_eq!(said, &Value::from(name.as_str()));
        }
    }
}

#[test]
fn the_shortest_step_keeps_its_digits_and_what_is_no_number_is_null() {
    let event = |start: f64, end: f64| Event { rank: 0, action: Action::forward(0, 0), start, end };
    let times = |events: Vec<Event>| {
        let page = data(&Page::new("page").track(&Track { name: "t".into(), ranks: 1, events }).html());
        let read = &page["timelines"][0]["ranks"][0]["events"];
        read.as_array().unwrap().iter().map(|event| (event[0].as_f64(), event[1].as_f64())).collect::<Vec<_>>()
    };
    assert!(times(vec![event(0.0, 1e-320)])[0].1.is_some_and(|end| end > 0.0));
    assert_eq!(times(vec![event(0.0, 2.0 / 3.0)]), [(Some(0.0), Some(0.666_666_666_7))]);
    assert_eq!(times(vec![event(1.0, f64::INFINITY), event(0.0, 1.0)])[0], (Some(0.0), Some(1.0)));
}

#[test]
fn names_are_text_and_nothing_is_fetched() {
    let evil = "</script><img src=x onerror=alert(1)>";
    let html = named(evil).html();
    assert!(!html.contains(evil));
    assert_eq!(data(&html)["title"], evil);
    let addresses: Vec<&str> = html.match_indices("http").map(|(at, _)| &html[at..at + 26]).collect();
    assert_eq!(addresses, ["http://www.w3.org/2000/svg"]);
    assert!(!html.contains("@import") && !html.contains("src=\""));
    // An empty page.
    assert!(data(&Page::default().html())["timelines"].as_array().unwrap().is_empty());
}

#[test]
fn a_trace_is_read_back_as_it_was_written() {
    for schedule in ["1F1B", "ZBV", "DualPipe"] {
        let plan = plan(schedule, 2, 6).with_transfers().unwrap();
        let track = step(&plan).track("measured");
        let read = read_chrome(&chrome(&[track.clone(), track.clone()])).unwrap();
        assert_eq!(read.len(), 2);
        for copy in read {
            assert_eq!((&copy.name, copy.ranks, copy.events.len()), (&track.name, track.ranks, track.events.len()));
            for event in &copy.events {
                let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
                let same = track.events.iter().any(|e| {
                    (e.rank, e.action) == (event.rank, event.action)
                        && close(e.start, event.start)
                        && close(e.end, event.end)
                });
                assert!(same, "{event:?}");
            }
        }
    }
    for (text, says) in [
        ("{", "this is not a trace in JSON: "),
        (r#"{"traceEvents": [{"name": "malloc", "ph": "X", "ts": 1, "dur": 1}]}"#, "event 0, `malloc`, is not an"),
        (r#"{"traceEvents": [{"name": "0F0", "ph": "X", "ts": 1, "dur": -1, "args": {"rank": 0}}]}"#, "event 0, `0F0`"),
    ] {
        let error = read_chrome(text).unwrap_err().to_string();
        assert!(error.starts_with(says), "{error}");
    }
}
