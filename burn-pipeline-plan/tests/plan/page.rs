//! The page: what it says, against the simulation; and how it behaves in a browser.

use burn_pipeline_plan::cost::{Profile, StageCost, UniformCosts};
use burn_pipeline_plan::page::{Choice, Choices, Page};
use burn_pipeline_plan::plan::Plan;
use burn_pipeline_plan::schedule::{Size, by_name};
use burn_pipeline_plan::simulate::{IdleCause, SimulateOptions, Simulation, simulate};
use burn_pipeline_plan::trace::{chrome, read_chrome};
use serde_json::Value;

pub(crate) fn plan(family: &str, ranks: usize, microbatches: usize) -> Plan {
    let size = Size::new(ranks, microbatches);
    let build = |size| by_name(family).unwrap().build(size);
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
    // Each of 8 microbatches crosses three boundaries twice, and is sent and received.
    assert_eq!(moved, 8.0 * 3.0 * 2.0 * 2.0 * 2e5);
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

#[test]
fn names_are_text_and_nothing_is_fetched() {
    let evil = "</script><img src=x onerror=alert(1)>";
    let plan = plan("1F1B", 2, 2);
    let choice = Choice { name: evil.into(), seconds: 1.0, peak: 1.0, pareto: true };
    let choices = Choices { unit: "bytes".into(), usable: vec![choice], dropped: vec![(evil.into(), evil.into())] };
    let html = Page::new(evil).simulation(evil, &step(&plan)).choices(choices).html();
    assert!(!html.contains(evil));
    assert_eq!(data(&html)["title"], evil);
    let addresses: Vec<&str> = html.match_indices("http").map(|(at, _)| &html[at..at + 26]).collect();
    assert_eq!(addresses, ["http://www.w3.org/2000/svg"]);
    assert!(!html.contains("@import") && !html.contains("src=\""));
    // A page without anything, and one of a step without a duration.
    assert!(data(&Page::default().html())["timelines"].as_array().unwrap().is_empty());
}

#[test]
fn a_trace_is_read_back_as_it_was_written() {
    for family in ["1F1B", "ZBV", "DualPipe"] {
        let plan = plan(family, 2, 6).with_transfers().unwrap();
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
        ("{", "this is no trace in JSON: "),
        (r#"{"traceEvents": [{"name": "malloc", "ph": "X", "ts": 1, "dur": 1}]}"#, "event 0, `malloc`, is no action"),
        (r#"{"traceEvents": [{"name": "0F0", "ph": "X", "ts": 1, "dur": -1, "args": {"rank": 0}}]}"#, "event 0, `0F0`"),
    ] {
        let error = read_chrome(text).unwrap_err().to_string();
        assert!(error.starts_with(says), "{error}");
    }
}
