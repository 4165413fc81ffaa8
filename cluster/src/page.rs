//! The status page: one page of HTML with its pictures in it, made on the server.
//!
//! For whom: the team that answers for backups. Its owner is the controller, which feeds [`Known`]
//! with our objects and asks [`render`] for text. Both are pure: the time is given, and nothing is
//! read from anywhere. What others wrote, names included, is hostile input. Whatever is not written
//! in this module reaches the text through `html::Html::text`, which escapes it.
//!
//! | file | |
//! |---|---|
//! | `page/known` | the facts that are kept of each object |
//! | `page/rhythm` | when a schedule wants a backup, and what is late |
//! | `page/view` | what was asked for: namespace, name, number of the page |
//! | `page/model` | what is shown, worst first |
//! | `page/words` | ages, times, sizes |
//! | `page/html`, `page/chart`, `page/sections`, `page/volumes`, `page/document` | the text |
//!
//! It must not hold a script, a link to another host, or a byte of a Secret. It decides nothing.

mod chart;
mod document;
mod html;
mod known;
mod model;
mod rhythm;
mod sections;
mod view;
mod volumes;
mod words;

pub use document::{content_security_policy, render};
pub use known::Known;
pub(crate) use known::{BackupFacts, ConditionFacts, DrillResult, RestoreFacts};
pub(crate) use model::Model;
pub use view::View;

use chrono::TimeDelta;

/// What is known counts as stale where no watch has told anything for so long. A watch ends and is
/// begun again within five minutes, also where nothing happens.
pub const STALE_AFTER: TimeDelta = TimeDelta::minutes(6);
