//! The status page in a real browser: it complains of nothing, asks nobody for anything, fits a
//! phone, can be read in both colour schemes and on paper, and can be used by the keyboard.
//!
//! `MOVER_TEST_PICTURES=1` keeps pictures in `tmp/page/` of the target directory, for people to look
//! at.

#![allow(missing_docs, reason = "tests")]

mod browser;
mod data;

use browser::{Browser, serve};
use mover_cluster::page::{Known, View, content_security_policy, render};
use serde_json::{Value, json};

const DESK: (u32, u32) = (1_280, 900);
const PHONE: (u32, u32) = (360, 740);
const OPEN: &str = "document.querySelectorAll('details').forEach(d => d.open = true)";

/// What is wider than the window, and by how much; the first few of it.
const OVERFLOW: &str = "(() => { const w = document.documentElement.clientWidth;
  const all = [...document.querySelectorAll('body *')].filter(e => !e.closest('.skip,.defs,thead'));
  const out = all.filter(e => !e.closest('svg') && (e.getBoundingClientRect().right > w + 0.5
    || e.matches('td,th,.cell,.tile dd') && e.scrollWidth > e.clientWidth + 1));
  return { page: document.documentElement.scrollWidth - w,
    out: out.slice(0, 5).map(e => e.outerHTML.slice(0, 120)) }; })()";

/// Texts whose colour is too near to that of their ground: less than 4.5 to 1.
const CONTRAST: &str = "(() => {
  const rgb = c => c.match(/[\\d.]+/g).map(Number);
  const lum = c => { const [r, g, b] = rgb(c).map(v => v / 255)
    .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b; };
  const ground = e => { for (; e; e = e.parentElement) {
    const c = getComputedStyle(e).backgroundColor; if (rgb(c)[3] !== 0) return c; } return 'rgb(255,255,255)'; };
  const bad = [];
  for (const e of document.querySelectorAll('body *')) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
    if (e.matches('title,desc') || !e.getClientRects().length) continue;
    const s = getComputedStyle(e);
    const [a, b] = [lum(e instanceof SVGElement ? s.fill : s.color), lum(ground(e))];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) bad.push(ratio.toFixed(2) + ' ' + e.outerHTML.slice(0, 90));
  }
  return bad.slice(0, 5); })()";

/// What a reader by ear would miss: pictures without a name, ids twice, tables without heads.
const NAMELESS: &str = "(() => {
  const ids = [...document.querySelectorAll('[id]')].map(e => e.id);
  const bad = ids.filter((id, n) => ids.indexOf(id) !== n);
  for (const e of document.querySelectorAll('svg:not([aria-hidden])')) {
    const of = (e.getAttribute('aria-labelledby') || '').split(' ').filter(Boolean);
    const named = e.getAttribute('aria-label') || of.length && of.every(id => document.getElementById(id));
    if (e.getAttribute('role') !== 'img' || !named) bad.push(e.outerHTML.slice(0, 90));
  }
  for (const e of document.querySelectorAll('table')) {
    if (!e.querySelector('thead th[scope=col]') || !e.querySelector('tbody th[scope=row]'))
      bad.push(e.outerHTML.slice(0, 90));
  }
  if (document.querySelectorAll('h1').length !== 1) bad.push('h1');
  return bad; })()";

fn page(known: &Known, query: &str) -> String {
    render(known, &View::parse(query), data::now())
}

/// Opens a page at both widths and in both schemes, and looks at it.
fn look(browser: &mut Browser, name: &str, page: String) {
    let url = serve(page, content_security_policy());
    for (size, width) in [(DESK, "desk"), (PHONE, "phone")] {
        for scheme in ["light", "dark"] {
            let what = format!("{name}-{width}-{scheme}");
            browser.open(&url, size, scheme);
            browser.picture(&what);
            // Closed and open.
            for open in ["closed", OPEN] {
                browser.value(&format!("{open}, 1"));
                let over = browser.value(OVERFLOW);
                assert_eq!(over, json!({ "page": 0, "out": [] }), "{what}");
                assert_eq!(browser.value(CONTRAST), json!([]), "{what}");
            }
            assert_eq!(browser.value(NAMELESS), json!([]), "{what}");
            browser.picture(&format!("{what}-open"));
            let (complaints, requests) = browser.told();
            assert_eq!(complaints, Vec::<String>::new(), "{what}");
            assert_eq!(requests, std::slice::from_ref(&url), "{what}");
        }
    }
}

#[test]
fn a_shop_is_readable_everywhere() {
    let Some(mut browser) = Browser::start("shop") else { return };
    look(&mut browser, "shop", page(&data::shop(), ""));
}

#[test]
fn an_empty_cluster_says_what_to_do() {
    let Some(mut browser) = Browser::start("empty") else { return };
    look(&mut browser, "empty", page(&Known::default(), ""));
    let text = browser.value("document.body.innerText");
    let text = text.as_str().expect("text");
    assert!(text.contains("Nothing is backed up yet") && text.contains("has not read the cluster"));
}

/// The first line is made of the same rows as the lists below it: none may say that all is well
/// above something that is not.
#[test]
fn the_head_says_nothing_better_than_the_lists() {
    let with = |conditions: Value, kind: &str, spec: Value| {
        let mut known = Known::default();
        let status = json!({ "conditions": conditions, "backups": 0 });
        known.set(&data::object(kind, "shop", "main", spec, status));
        page(&known, "")
    };
    let condition = |kind: &str, status: &str| {
        json!({ "type": kind, "status": status, "reason": "Why", "message": "it says why", "observedGeneration": 1,
            "lastTransitionTime": data::stamp(data::now()) })
    };
    let url = json!({
        "url": "s3://b/p", "keySecretRef": { "name": "key" }, "jobTemplate": { "image": "mover:1" },
    });
    let good = with(json!([condition("Ready", "True")]), "Repository", url.clone());
    assert!(good.contains("Nothing is wrong"), "{good}");
    for kind in ["Ready", "Checked", "Collected", "Synced", "Copied"] {
        let all = json!([condition("Ready", "True"), condition(kind, "False")]);
        let all = if kind == "Ready" { json!([condition(kind, "False")]) } else { all };
        let bad = with(all, "Repository", url.clone());
        assert!(!bad.contains("Nothing is wrong") && bad.contains("it says why"), "{kind}: {bad}");
    }
    let spec = json!({ "cron": "0 * * * *", "template": { "spec": {
        "source": { "pvc": "db" }, "repositoryRef": { "name": "main" } } } });
    let bad = with(json!([condition("Ready", "False")]), "BackupSchedule", spec);
    assert!(bad.contains("1 schedule without effect"), "{bad}");
}

#[test]
fn hostile_names_are_text() {
    let Some(mut browser) = Browser::start("hostile") else { return };
    look(&mut browser, "hostile", page(&data::hostile(), ""));
    let elements = "[...new Set([...document.querySelectorAll('*')].map(e => e.localName))]";
    let elements: Vec<String> = serde_json::from_value(browser.value(elements)).expect("names");
    for element in ["script", "img", "iframe", "object"] {
        assert!(!elements.iter().any(|it| it == element), "{elements:?}");
    }
    let handlers = "[...document.querySelectorAll('*')].flatMap(e => e.getAttributeNames())
        .filter(n => n.startsWith('on'))";
    assert_eq!(browser.value(handlers), json!([]));
    assert_eq!(browser.value("document.querySelectorAll('style').length"), 1);
    let links = "[...document.links].map(a => a.protocol).filter(p => p !== 'http:')";
    assert_eq!(browser.value(links), json!([]));
    let shown = browser.value("document.body.innerText.includes('<script>fetch(')");
    assert_eq!(shown, true);
}

#[test]
fn three_hundred_volumes_have_pages() {
    let Some(mut browser) = Browser::start("many") else { return };
    look(&mut browser, "many", page(&data::many(300, 30), "page=2"));
    let text = browser.value("document.querySelector('#volumes').innerText");
    assert_eq!(text, "Volumes 26 to 50 of 300, worst first");
    let next = "[...document.links].find(a => a.innerText === 'Next').getAttribute('href')";
    assert_eq!(browser.value(next), "?page=3#volumes");
}

/// Nanoseconds that this thread has had a processor for.
fn busy() -> u64 {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").expect("the kernel tells");
    told.split(' ').next().and_then(|it| it.parse().ok()).expect("a number")
}

/// Whatever there is, a page has a bound, and the time that it takes is said.
#[test]
fn a_thousand_volumes_make_a_page_of_bounded_size() {
    let known = data::many(1_000, 30);
    for query in ["", "page=40", "namespace=team-042", "find=data-0007", "page=999999"] {
        let begun = busy();
        let text = page(&known, query);
        let spent = (busy() - begun) / 1_000;
        println!("1,000 volumes, 30,000 backups, ?{query}: {} KiB, {spent} µs", text.len() >> 10);
        assert!(text.len() < 700 << 10, "{query}: {} bytes", text.len());
    }
    assert_eq!(page(&known, "find=data-0007").matches("<details").count(), 1);
    assert_eq!(page(&known, "namespace=team-042").matches("<details").count(), 10);
    let hostile = page(&data::hostile(), "").len();
    assert!(hostile < 2 << 20, "{hostile} bytes");
}

#[test]
fn the_keyboard_is_enough() {
    let Some(mut browser) = Browser::start("keys") else { return };
    let url = serve(page(&data::shop(), ""), content_security_policy());
    browser.open(&url, DESK, "light");
    let at = "document.activeElement.matches('summary') ? 'row' : document.activeElement.localName";
    let mut path: Vec<Value> = Vec::new();
    while path.last() != Some(&json!("row")) {
        browser.press("Tab", 9, "");
        path.push(browser.value(at));
        assert!(path.len() < 40, "{path:?}");
    }
    assert_eq!(path[0], "a", "the link to the volumes comes first");
    for stop in ["select", "input", "button"] {
        assert!(path.contains(&json!(stop)), "{path:?}");
    }
    let open = "document.querySelector('details').open";
    assert_eq!(browser.value(open), false);
    browser.press("Enter", 13, "\r");
    assert_eq!(browser.value(open), true);
}

#[test]
fn paper_has_all_that_is_closed_on_the_screen() {
    let Some(mut browser) = Browser::start("paper") else { return };
    let url = serve(page(&data::shop(), ""), content_security_policy());
    browser.open(&url, (794, 1_123), "dark");
    browser.call("Emulation.setEmulatedMedia", json!({ "media": "print" }));
    let closed = "[...document.querySelectorAll('.in')].filter(e => !e.getClientRects().length ||
        e.getBoundingClientRect().height < 20).length";
    assert_eq!(browser.value(closed), 0);
    assert_eq!(browser.value("getComputedStyle(document.querySelector('.form')).display"), "none");
    let grounds = browser.value("getComputedStyle(document.body).backgroundColor");
    assert_eq!(grounds, "rgb(255, 255, 255)");
    browser.picture("paper");
}
