//! Traces, compared with PyTorch's Chrome traces and with the requirements of their formats.

use crate::golden_text::{blocks, rows};
use burn_pipeline_plan::cost::{Profile, UniformCosts};
use burn_pipeline_plan::plan::{Action, Transport};
use burn_pipeline_plan::schedule::{Size, by_name};
use burn_pipeline_plan::simulate::{SimulateOptions, simulate};
use burn_pipeline_plan::trace::{Event, SvgOptions, Track, chrome};
use serde_json::Value;
use std::collections::HashMap;

fn track(name: &str, size: Size, lower: bool) -> Track {
    let plan = by_name(name).unwrap().build(size).unwrap();
    let plan = if lower { plan.with_transfers().unwrap() } else { plan };
    let profile = Profile::uniform(plan.placement(), UniformCosts::new(1.0, 1.0, 1.0).with_transfer(0.5)).unwrap();
    let options = SimulateOptions { transport: Transport::Unbounded, overlap: true };
    simulate(&plan, &profile, &options).unwrap().track(name)
}

fn events(json: &str) -> Vec<Value> {
    let Value::Object(mut trace) = serde_json::from_str(json).unwrap() else { panic!("an object") };
    let Some(Value::Array(events)) = trace.remove("traceEvents") else { panic!("a list of events") };
    events
}

/// The trace of rows by rank and time, in cells.
fn steps(rows: &[Vec<Action>]) -> Vec<(u64, Value)> {
    let track = Track::of_steps("steps", rows);
    let steps = events(&chrome(&[track])).into_iter().filter(|event| event["ph"] == "X").map(|mut event| {
        for key in ["ts", "dur"] {
            event[key] = Value::from((event[key].as_f64().unwrap() * 1e-6).round() as u64);
        }
        // Transfers have their own threads, after those of the ranks.
        (event["tid"].as_u64().unwrap() % rows.len() as u64, event)
    });
    let mut steps: Vec<_> = steps.collect();
    steps.sort_by_key(|(rank, event)| (*rank, event["ts"].as_u64()));
    steps
}

#[test]
fn steps_are_traced_as_pytorch_traces_them_but_i_is_a_computation() {
    let (mut compared, mut relabelled) = (0, 0);
    for block in blocks(include_str!("goldens/simulate/chrometrace.txt")) {
        let ours = steps(&rows(block.part("in").unwrap()));
        let theirs = events(block.part("out").unwrap());
        assert_eq!(ours.len(), theirs.len(), "{}", block.name);
        for ((rank, ours), theirs) in ours.iter().zip(&theirs) {
            for key in ["name", "ph", "ts", "dur"] {
                assert_eq!(ours[key], theirs[key], "{}: {key} of {theirs}", block.name);
            }
            assert_eq!(*rank, theirs["tid"].as_u64().unwrap(), "{}: {theirs}", block.name);
            let input = theirs["name"].as_str().unwrap().contains('I');
            let expected = if input { &Value::from("computation") } else { &theirs["cat"] };
            assert_eq!(&ours["cat"], expected, "{}: {theirs}", block.name);
            relabelled += usize::from(input && theirs["cat"] == "communication");
        }
        compared += 1;
    }
    println!("compared {compared} traces; {relabelled} events of I are computations here");
    assert_eq!(compared, 5);
    assert!(relabelled > 0);
}

#[test]
fn tracks_are_processes_and_no_two_events_of_a_thread_overlap() {
    let predicted = track("ZBV", Size::new(4, 8).with_chunks(2), true);
    let measured = Track { name: "measured".into(), ..predicted.clone() };
    let events = events(&chrome(&[predicted.clone(), measured]));
    let mut threads: HashMap<(u64, u64), Vec<(f64, f64)>> = HashMap::new();
    for event in events.iter().filter(|e| e["ph"] == "X") {
        let thread = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
        let (start, length) = (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap());
        threads.entry(thread).or_default().push((start, start + length));
    }
    for ends in threads.values_mut() {
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert!(ends.windows(2).all(|pair| pair[0].1 <= pair[1].0 + 1e-6), "{ends:?}");
    }
    let counted: usize = threads.values().map(Vec::len).sum();
    assert_eq!(counted, 2 * predicted.events.len());
    let named = |what: &str| events.iter().filter(|e| e["name"] == what).count();
    assert_eq!(named("process_name"), 2);
    assert!(named("thread_name") > 2 * 4, "ranks and the threads of their transfers");
    let last = events.iter().filter_map(|e| Some(e["ts"].as_f64()? + e["dur"].as_f64()?)).fold(0.0, f64::max);
    assert!((last - predicted.end() * 1e6).abs() < 1e-3, "microseconds");
}

/// Asserts that every tag closes, with quoted attributes and no bare `<` or `&` in text. Returns how often each
/// occurs.
fn well_formed(xml: &str) -> HashMap<String, usize> {
    let (mut open, mut counts) = (Vec::new(), HashMap::new());
    let mut rest = xml;
    while let Some(start) = rest.find('<') {
        let text = &rest[..start];
        let entities = ["&amp;", "&lt;", "&gt;", "&quot;", "&#39;"];
        assert_eq!(
            text.matches('&').count(),
            entities.iter().map(|e| text.matches(e).count()).sum::<usize>(),
            "{text}"
        );
        let end = start + rest[start..].find('>').unwrap();
        let tag = &rest[start + 1..end];
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        let name = tag.trim_matches('/').split([' ', '/']).next().unwrap().to_owned();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "{tag}");
        } else {
            *counts.entry(name.clone()).or_default() += 1;
            if !tag.ends_with('/') {
                open.push(name);
            }
        }
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty(), "{open:?}");
    counts
}

#[test]
fn a_timeline_is_well_formed_and_shows_every_event() {
    for (name, chunks, lower) in [("1F1B", 1, false), ("ZBV", 2, true), ("DualPipe", 1, false), ("Chimera", 1, true)] {
        let track = track(name, Size::new(4, 8).with_chunks(chunks), lower);
        let drawing = track.svg(&SvgOptions::default());
        // Each event has its box's title, which shows when a reader points at it.
        assert_eq!(well_formed(&drawing)["title"], track.events.len(), "{name}");
        for rank in 0..4 {
            assert!(drawing.contains(&format!(">rank {rank}<")), "{name}");
        }
        for (words, shown) in [
            ("F forward", true),
            ("idle", true),
            ("second route", matches!(name, "DualPipe" | "Chimera")),
            ("W backward for the weights", matches!(name, "ZBV" | "DualPipe")),
            ("chunks 0 to 1", name == "ZBV"),
            (">transfer<", lower),
        ] {
            assert_eq!(drawing.contains(words), shown, "{name}: {words}");
        }
    }
}

#[test]
fn boxes_are_as_long_as_their_events_and_colours_tell_operations_and_chunks() {
    let track = track("Interleaved1F1B", Size::new(2, 2).with_chunks(2), false);
    let options = SvgOptions { width: 58.0 + 14.0 + 100.0 * track.end(), ..SvgOptions::default() };
    let drawing = track.svg(&options);
    // A second is 100 pixels wide: an F of a chunk 50, a B 100. Chunk 1 is a lighter blue.
    assert!(drawing.contains(r##"width="50.00" height="28.00" fill="#0072b2""##), "{drawing}");
    assert!(drawing.contains(r##"width="50.00" height="28.00" fill="#99c7e0""##), "{drawing}");
    assert!(drawing.contains(r##"width="100.00" height="28.00" fill="#d55e00""##), "{drawing}");
}

#[test]
fn names_cannot_break_a_drawing() {
    let track = Track { name: "<b>&\"'\u{1}".into(), ..track("1F1B", Size::new(2, 2), false) };
    let drawing = track.svg(&SvgOptions { time_label: "a<b".into(), ..SvgOptions::default() });
    well_formed(&drawing);
    assert!(drawing.contains("&lt;b&gt;&amp;&quot;&#39;<"));
    assert_eq!(events(&chrome(&[track]))[0]["args"]["name"], "<b>&\"'\u{1}");
}

#[test]
fn a_terminal_shows_the_same() {
    let plan = by_name("1F1B").unwrap().build(Size::new(2, 2)).unwrap();
    let profile = Profile::uniform(plan.placement(), UniformCosts::new(1.0, 1.0, 1.0)).unwrap();
    let track = simulate(&plan, &profile, &SimulateOptions::default()).unwrap().track("t");
    let expected = "\
rank 0 |0F0-0F1-........0B0-----....0B1-----
rank 1 |....1F0-1B0-----1F1-1B1-----........
        0                                  9
";
    assert_eq!(track.ascii(8 + 36), expected);
}

#[test]
fn blocking_transfers_are_seen_in_a_terminal() {
    let event = |rank, action: &str, start, end| Event { rank, action: action.parse().unwrap(), start, end };
    let events = vec![event(0, "0F0", 0.0, 1.0), event(0, "0SEND_F0", 1.0, 2.0), event(1, "1RECV_F0", 1.0, 2.0)];
    let drawing = Track { name: "t".into(), ranks: 2, events }.ascii(28);
    assert!(drawing.starts_with("rank 0 |0F0------->>>>>>>>>>\nrank 1 |..........<<<<<<<<<<\n"), "{drawing}");
}

#[test]
fn events_without_sense_do_not_panic() {
    let action = Action::forward(0, 0);
    let times = [(f64::NAN, 1.0), (2.0, 1.0), (0.0, f64::INFINITY), (-1.0, -2.0), (0.0, 0.0)];
    let exchanged = ["0SEND_F0", "0RECV_B0", "0REDUCE_GRAD", "0UNSHARD"].map(|action| action.parse().unwrap());
    let all = [vec![action], exchanged.to_vec(), exchanged.iter().chain(&[action]).copied().collect()];
    let event = |action| times.map(|(start, end)| Event { rank: 3, action, start, end });
    let tracks = all.map(|actions| Track {
        ranks: 0,
        events: actions.into_iter().flat_map(event).collect(),
        ..Track::default()
    });
    for track in tracks.into_iter().chain([Track::default()]) {
        assert!(track.exposed_times().len() <= track.events.len());
        track.ascii(0);
        well_formed(&track.svg(&SvgOptions { width: 0.0, ..SvgOptions::default() }));
        chrome(&[track]);
    }
}
