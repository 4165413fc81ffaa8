//! The connection behind a topic: a list for its version, a watch from there, and again.
//!
//! Whatever ends a connection, the next one begins with the version of a list. If the newest
//! version that was told is no newer than that, the server has had no other past, and the watch
//! goes on where it was: nothing is missed, and nobody hears of it. Else all is begun anew, and
//! every subscriber is told once. A line that is not whole ends the connection, so it is told again.

use super::Read;
use super::event::{Event, Line};
use super::selector::Place;
use super::topic::{Labelled, Topic, lock};
use crate::api::errors::{Asked, classify};
use crate::api::log::{Bounds, Lines};
use crate::api::{ANSWER, Api, ApiError, path};
use crate::engine::{Failure, exit};
use futures::AsyncBufRead;
use kube::api::{ListParams, Request, WatchParams};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::{Duration, Instant};

/// The longest line of a watch; an object has at most 1.5 MiB in the server's own form.
const LINE: usize = 16 << 20;
/// A watch ends by itself after so long, and up to a minute more: not all at once.
const WATCH: u32 = 240;
const RETRY_FIRST: Duration = Duration::from_millis(250);
const RETRY_MOST: Duration = Duration::from_secs(30);
/// A watch that lives for longer is well.
const WELL: Duration = Duration::from_secs(5);
/// A watch that could not be had for so long is off: whoever needs it looks by itself.
const DOWN: Duration = Duration::from_secs(60);
/// One that was refused is tried again then.
const REFUSED: Duration = Duration::from_secs(60);
/// So often in a row a watch is taken up where it was without anything being told.
const FRUITLESS: u32 = 3;

pub(super) struct Source {
    pub(super) api: Api,
    pub(super) place: Place,
    pub(super) silence: Duration,
    pub(super) topic: Arc<Mutex<Topic>>,
    pub(super) read: Arc<Read>,
}

/// How a connection ended.
#[derive(Debug)]
enum End {
    /// The next one goes on where it was.
    Cut(Failure),
    /// It cannot.
    Lost(Failure),
    /// The same would be refused again.
    Refused(ApiError),
}

impl From<ApiError> for End {
    fn from(error: ApiError) -> Self {
        match error {
            ApiError::Absent(_) | ApiError::Refused(_) => Self::Refused(error),
            ApiError::Unavailable(why) | ApiError::Expired(why) | ApiError::Conflict(why) => {
                Self::Cut(why)
            }
        }
    }
}

/// What is remembered from one connection to the next.
#[derive(Debug)]
struct Past {
    /// The server does not go on where it was.
    lost: bool,
    fruitless: u32,
    /// When it told something last, or was asked first.
    told: Instant,
}

impl Source {
    /// Feeds the topic until `leave` says that nobody listens, or it is refused.
    pub(super) async fn run(self, leave: impl Fn() -> bool) {
        let mut past = Past { lost: false, fruitless: 0, told: Instant::now() };
        let mut pause = RETRY_FIRST;
        loop {
            let begun = Instant::now();
            match self.connect(&mut past).await {
                End::Refused(why) => {
                    tracing::debug!("{}", Failure::from(why.clone()));
                    let until = Some(Instant::now() + REFUSED);
                    return wake(lock(&self.topic).turn_off(why, until));
                }
                End::Lost(why) => {
                    tracing::warn!("{why}; all that is watched there is read again");
                    past.lost = true;
                }
                End::Cut(why) => tracing::debug!("{why}; the watch goes on"),
            }
            if leave() {
                return;
            }
            if begun.elapsed() >= WELL {
                pause = RETRY_FIRST;
            } else if past.told.elapsed() >= DOWN && lock(&self.topic).is_on() {
                let what = format!("for {} s {} could not be had", DOWN.as_secs(), self.watch());
                let why = ApiError::Unavailable(Failure::new(exit::RETRYABLE, what));
                wake(lock(&self.topic).turn_off(why, None));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY_MOST);
        }
    }

    fn watch(&self) -> String {
        let Place { kind, namespace, labels } = &self.place;
        let of = if labels.is_empty() { String::new() } else { format!(" with {labels}") };
        let place = namespace.as_ref().map_or(String::new(), |name| format!(" in {name}"));
        format!("the watch of {}{of}{place}", kind.resource().plural)
    }

    /// One connection from its begin to its end.
    async fn connect(&self, past: &mut Past) -> End {
        let mut lines = match self.begin(past).await {
            Ok(lines) => lines,
            Err(end) => return end,
        };
        lock(&self.topic).resume();
        past.fruitless += 1;
        loop {
            let said = match lines.next().await {
                Ok(Some(line)) => Line::parse(self.place.kind, &line),
                Ok(None) => return self.cut("it ended"),
                Err(why) => Err(why),
            };
            let told = match said {
                Ok(Line::Event(event)) => lock(&self.topic).publish(event).map(wake),
                Ok(Line::Bookmark(version)) => lock(&self.topic).bookmark(version),
                Ok(Line::Error(410, why)) => return self.lost(&why),
                Ok(Line::Error(code, why)) => return self.cut(&format!("{code}: {why}")),
                Err(why) => return self.cut(&why),
            };
            if let Err(back) = told {
                return self.lost(&format!("{} was told after {}", back.version, back.head));
            }
            past.fruitless = 0;
            past.told = Instant::now();
        }
    }

    /// The watch, from where the topic is, or from a list.
    async fn begin(
        &self,
        past: &mut Past,
    ) -> Result<Lines<impl AsyncBufRead + Send + Unpin + use<>>, End> {
        let read = self.read.of(self.place.kind);
        let newest = self.newest().await?;
        let may_resume = lock(&self.topic).may_resume(newest.as_deref(), read);
        if past.lost || past.fruitless >= FRUITLESS || !may_resume {
            let (listed, objects) = match self.place.labels.is_empty() {
                true => (newest, Vec::new()),
                false => self.labelled().await?,
            };
            wake(lock(&self.topic).begin(listed.as_deref(), objects));
            past.lost = false;
            past.fruitless = 0;
        }
        let from = lock(&self.topic).head().unwrap_or_default().to_owned();
        self.open(&from).await
    }

    /// The version that the server is at.
    async fn newest(&self) -> Result<Option<String>, ApiError> {
        let selection = self.place.selection();
        let parameters = selected(ListParams::default().limit(1), &selection);
        let Place { kind, namespace, .. } = &self.place;
        let request = Request::new(path(*kind, namespace.as_deref())).list(&parameters);
        let asked = Asked::many("list", *kind, namespace.as_deref());
        let list = self.api.send(request, asked).await?;
        Ok(list["metadata"]["resourceVersion"].as_str().map(str::to_owned))
    }

    /// All objects that are watched, for their labels.
    async fn labelled(&self) -> Result<(Option<String>, Vec<Labelled>), ApiError> {
        let (objects, version) = self.api.list(&self.place.selection()).await?;
        let of = |object| {
            let event = Event::of(self.place.kind, object, false).ok()?;
            Some((event.uid, event.labels))
        };
        Ok((version, objects.into_iter().filter_map(of).collect()))
    }

    async fn open(
        &self,
        from: &str,
    ) -> Result<Lines<impl AsyncBufRead + Send + Unpin + use<>>, End> {
        let Place { kind, namespace, .. } = &self.place;
        let selection = self.place.selection();
        let asked = Asked::many("watch", *kind, namespace.as_deref());
        let parameters = WatchParams {
            label_selector: Some(selection.labels).filter(|labels| !labels.is_empty()),
            field_selector: Some(selection.fields).filter(|fields| !fields.is_empty()),
            timeout: Some(WATCH + (*kind as u32 * 7) % 60),
            ..WatchParams::default()
        };
        let mut request = Request::new(path(*kind, namespace.as_deref()))
            .watch(&parameters, from)
            .map_err(|why| asked.unwritten(&why))?;
        // The client would not read on in what is compressed event by event.
        let identity = http::HeaderValue::from_static("identity");
        request.headers_mut().insert(http::header::ACCEPT_ENCODING, identity);
        let _permit = self.api.permit().await;
        let begun = tokio::time::timeout(ANSWER, self.api.client.request_stream(request)).await;
        let stream = match begun {
            Err(_) => return Err(asked.unanswered(ANSWER.as_secs()).into()),
            Ok(Err(kube::Error::Api(status))) if status.code == 410 => {
                return Err(self.lost(&status.message));
            }
            Ok(Err(why)) => return Err(classify(why, &asked).into()),
            Ok(Ok(stream)) => stream,
        };
        let silence = Some(self.silence);
        let bounds = Bounds { line_bytes: LINE, bytes: usize::MAX, silence };
        Ok(Lines::new(Box::pin(stream), bounds))
    }

    fn cut(&self, why: &str) -> End {
        End::Cut(Failure::new(exit::RETRYABLE, format!("{}: {why}", self.watch())))
    }

    fn lost(&self, why: &str) -> End {
        End::Lost(Failure::new(exit::RETRYABLE, format!("{}: {why}", self.watch())))
    }
}

fn selected(parameters: ListParams, selection: &crate::engine::Selection) -> ListParams {
    let parameters = match selection.labels.as_str() {
        "" => parameters,
        labels => parameters.labels(labels),
    };
    match selection.fields.as_str() {
        "" => parameters,
        fields => parameters.fields(fields),
    }
}

/// Without any lock.
fn wake(all: Vec<Waker>) {
    all.into_iter().for_each(Waker::wake);
}
