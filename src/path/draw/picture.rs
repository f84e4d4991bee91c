//! Ranks as lanes over logical time, as SVG.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::ops::Range;

use crate::path::draw::table::title;
use crate::path::draw::timeline::{Beat, Hand, timeline};
use crate::path::plan::{Action, Post};
use crate::path::verify::{VerifiedPlan, Wiring};

/// Free space around the picture, in pixels.
const MARGIN: u32 = 16;
const LABEL_WIDTH: u32 = 92;
const HEAD_HEIGHT: u32 = 84;
const BOX_HEIGHT: u32 = 18;
const LANE_GAP: u32 = 14;
const LANE_HEIGHT: u32 = 2 * BOX_HEIGHT + LANE_GAP;
const COLUMN_WIDTH_MIN: u32 = 22;
const COLUMN_WIDTH_MAX: u32 = 44;
/// The width that is aimed at when columns can be wide.
const WIDTH_USUAL: u32 = 1100;
/// What the title and the legend need.
const WIDTH_MIN: u32 = 900;
/// A finer cut would show no more.
const CHUNKS_MAX: u32 = 64;
/// Above this many arrows only those of first chunks are drawn.
const ARROWS_MAX: usize = 260;

const SEND: &str = "#4c8dd6";
const PLACE: &str = "#4fae6d";
const REDUCE: &str = "#e08a3c";
const FINISH: &str = "#c9503f";
const COPY: &str = "#9a86c9";

/// The plan as a picture: a lane per rank, time from left to right, a box per chunk of each step, arrows for messages.
///
/// Every chunk takes one unit of time; each step is cut into `chunks` chunks (1 to 64), shaded from dark to light. `count` is the number of elements, for the texts that appear under the mouse.
pub fn svg(plan: &VerifiedPlan, count: usize, chunks: u32) -> String {
    let chunks = chunks.clamp(1, CHUNKS_MAX);
    let wiring = Wiring::of(plan);
    let beats = timeline(plan, &wiring, chunks);
    let columns = beats.last().map_or(1, |beat| beat.time + 1);
    let column_width = (WIDTH_USUAL / columns).clamp(COLUMN_WIDTH_MIN, COLUMN_WIDTH_MAX);
    let picture = Picture { plan, wiring: &wiring, beats: &beats, chunks, count, column_width };
    let width = (2 * MARGIN + LABEL_WIDTH + columns * column_width).max(WIDTH_MIN);
    let height = HEAD_HEIGHT + plan.ranks.len() as u32 * LANE_HEIGHT + MARGIN;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\" font-size=\"11\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    picture.head(&mut out);
    picture.lanes(&mut out, columns);
    picture.boxes(&mut out);
    picture.arrows(&mut out);
    picture.labels(&mut out);
    out + "</svg>\n"
}

struct Picture<'a> {
    plan: &'a VerifiedPlan,
    wiring: &'a Wiring,
    beats: &'a [Beat],
    chunks: u32,
    count: usize,
    column_width: u32,
}

impl Picture<'_> {
    fn head(&self, out: &mut String) {
        let y = MARGIN + 10;
        let _ = writeln!(
            out,
            "<text x=\"{MARGIN}\" y=\"{y}\" font-size=\"14\" font-weight=\"bold\">{}</text>",
            title(self.plan, self.count)
        );
        let y = y + 14;
        let mut x = MARGIN;
        let legend = [
            ("send", SEND),
            ("place", PLACE),
            ("reduce", REDUCE),
            ("reduce and finish", FINISH),
            ("copy", COPY),
        ];
        let used: HashSet<&str> = self.beats.iter().map(|beat| colour(self.action(beat))).collect();
        for (name, colour) in legend.into_iter().filter(|(_, colour)| used.contains(colour)) {
            let text_x = x + 18;
            let text_y = y + 10;
            let _ = writeln!(
                out,
                "<rect x=\"{x}\" y=\"{y}\" width=\"14\" height=\"12\" rx=\"2\" fill=\"{colour}\"/>\
                 <text x=\"{text_x}\" y=\"{text_y}\">{name}</text>"
            );
            x += 38 + 6 * name.len() as u32;
        }
        let text_y = y + 10;
        let shades = match self.chunks {
            1 => "one chunk per step".to_string(),
            chunks => format!("{chunks} chunks per step, dark to light"),
        };
        let arrows = if self.arrows_of_first_chunks_only() { "; arrows of first chunks only" } else { "" };
        let _ = writeln!(
            out,
            "<text x=\"{x}\" y=\"{text_y}\" fill=\"#555555\">{shades}; one column = one chunk{arrows}</text>\n\
             <text x=\"{MARGIN}\" y=\"{}\" fill=\"#555555\" font-size=\"10\">upper half of a lane (out): sends; lower half \
             (in): what is done with what came; the numbers count units of time</text>",
            text_y + 14
        );
    }

    fn lanes(&self, out: &mut String, columns: u32) {
        for rank in 0..self.plan.ranks.len() as u32 {
            let top = HEAD_HEIGHT + rank * LANE_HEIGHT;
            let width = columns * self.column_width;
            let x = MARGIN + LABEL_WIDTH;
            let _ = writeln!(
                out,
                "<rect x=\"{x}\" y=\"{top}\" width=\"{width}\" height=\"{}\" fill=\"#f1f3f5\"/>\
                 <text x=\"{MARGIN}\" y=\"{}\" font-weight=\"bold\">rank {rank}</text>\
                 <text x=\"{}\" y=\"{}\" text-anchor=\"end\" fill=\"#777777\" font-size=\"9\">out</text>\
                 <text x=\"{}\" y=\"{}\" text-anchor=\"end\" fill=\"#777777\" font-size=\"9\">in</text>",
                2 * BOX_HEIGHT,
                top + BOX_HEIGHT + 4,
                x - 6,
                top + 12,
                x - 6,
                top + BOX_HEIGHT + 12,
            );
        }
        for column in 0..columns {
            let x = self.middle(column);
            let y = HEAD_HEIGHT - 6;
            let _ = writeln!(
                out,
                "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\" fill=\"#999999\" font-size=\"8\">{column}</text>"
            );
        }
    }

    fn boxes(&self, out: &mut String) {
        let (width, height) = (self.column_width - 2, BOX_HEIGHT - 2);
        for beat in self.beats {
            let action = self.action(beat);
            let (x, y) = (self.left(beat.time) + 1, self.top(beat) + 1);
            // From full colour for the first chunk to half of it for the last.
            let opacity = 1.0 - 0.5 * f64::from(beat.chunk) / f64::from(self.chunks.max(2) - 1);
            let _ = writeln!(
                out,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"3\" \
                 fill=\"{}\" fill-opacity=\"{opacity:.2}\"><title>{}</title></rect>",
                colour(action),
                self.tip(beat, action),
            );
        }
    }

    /// Over the arrows, so that they can be read; the mouse goes through them to the boxes.
    fn labels(&self, out: &mut String) {
        out.push_str("<g font-size=\"10\" text-anchor=\"middle\" pointer-events=\"none\">\n");
        for beat in self.beats {
            let (x, y) = (self.middle(beat.time), self.top(beat) + 13);
            let _ = writeln!(out, "<text x=\"{x}\" y=\"{y}\">{}</text>", label(self.action(beat)));
        }
        out.push_str("</g>\n");
    }

    /// From each sent chunk to the box that takes it.
    fn arrows(&self, out: &mut String) {
        let mut taken = HashMap::new();
        for beat in self.beats {
            for (from, message) in self.action(beat).messages_in() {
                taken.insert((from, self.wiring.sender(from, beat.rank, message), beat.chunk), beat);
            }
        }
        let _ = writeln!(
            out,
            "<defs><marker id=\"tip\" markerWidth=\"6\" markerHeight=\"6\" refX=\"5\" refY=\"3\" orient=\"auto\">\
             <path d=\"M0,0.5 L6,3 L0,5.5 z\" fill=\"#1b2a3a\"/></marker></defs>\
             <g stroke=\"#1b2a3a\" stroke-width=\"0.9\" stroke-opacity=\"0.5\" fill=\"none\" pointer-events=\"none\" marker-end=\"url(#tip)\">"
        );
        for beat in self.beats {
            let Some(take) = taken.get(&(beat.rank, beat.step, beat.chunk)) else { continue };
            if Hand::of(self.action(beat)) == Hand::In
                || (self.arrows_of_first_chunks_only() && beat.chunk > 0)
            {
                continue;
            }
            let (x, end_x) = (self.middle(beat.time), self.middle(take.time));
            // An arrow leaves and arrives on the side of the lane where the other end is.
            let down = take.rank > beat.rank;
            let y = self.top(beat) + if down { BOX_HEIGHT - 1 } else { 1 };
            let end_y = self.top(take) + if down { 1 } else { BOX_HEIGHT - 1 };
            let _ = writeln!(out, "<line x1=\"{x}\" y1=\"{y}\" x2=\"{end_x}\" y2=\"{end_y}\"/>");
        }
        out.push_str("</g>\n");
    }

    fn arrows_of_first_chunks_only(&self) -> bool {
        let sends = self.beats.iter().filter(|beat| Hand::of(self.action(beat)) == Hand::Out);
        sends.count() > ARROWS_MAX
    }

    fn action(&self, beat: &Beat) -> &Action {
        &self.plan.ranks[beat.rank.index()].steps[beat.step as usize].action
    }

    fn left(&self, column: u32) -> u32 {
        MARGIN + LABEL_WIDTH + column * self.column_width
    }

    fn middle(&self, column: u32) -> u32 {
        self.left(column) + self.column_width / 2
    }

    fn top(&self, beat: &Beat) -> u32 {
        let lane = HEAD_HEIGHT + beat.rank.0 * LANE_HEIGHT;
        lane + if Hand::of(self.action(beat)) == Hand::In { BOX_HEIGHT } else { 0 }
    }

    fn tip(&self, beat: &Beat, action: &Action) -> String {
        let what = match action {
            Action::Send { to, .. } => format!("send to {to}"),
            Action::Place { from, .. } => format!("place from {from}"),
            Action::Copy { .. } => "copy".to_string(),
            Action::Reduce { srcs, .. } => format!("reduce {} sources", srcs.len()),
        };
        let elements = self.elements(beat, action);
        let elements = match elements.is_empty() {
            true => "no elements".to_string(),
            false => format!("elements {}..{}", elements.start, elements.end),
        };
        format!(
            "rank {}, step {}, chunk {} of {}: {what}, {elements}",
            beat.rank,
            beat.step,
            beat.chunk + 1,
            self.chunks,
        )
    }

    /// Those of this chunk, if all chunks of the step are as even as they can be.
    fn elements(&self, beat: &Beat, action: &Action) -> Range<usize> {
        let step = self.plan.partition(self.count).elements(action.range());
        // Of a huge vector, the product is more than a word holds.
        let offset = |chunk: u32| (step.len() as u128 * u128::from(chunk) / u128::from(self.chunks)) as usize;
        step.start + offset(beat.chunk)..step.start + offset(beat.chunk + 1)
    }
}

const fn colour(action: &Action) -> &'static str {
    match action {
        Action::Send { .. } => SEND,
        Action::Place { .. } => PLACE,
        Action::Copy { .. } => COPY,
        Action::Reduce { post: Post::None, .. } => REDUCE,
        Action::Reduce { post: Post::Finish, .. } => FINISH,
    }
}

fn label(action: &Action) -> String {
    match action {
        Action::Send { to, .. } => format!("→{to}"),
        Action::Place { from, .. } => format!("←{from}"),
        Action::Copy { .. } => "=".to_string(),
        Action::Reduce { .. } => "Σ".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::{Algorithm, Collective, build, verify};
    use crate::rank::Rank;

    #[test]
    fn there_is_a_box_per_chunk_and_an_arrow_per_sent_chunk() {
        let plan = verify(build(Algorithm::MeshTwoShot, Collective::AllReduce, 4).unwrap()).unwrap();
        let steps: usize = plan.ranks.iter().map(|part| part.steps.len()).sum();
        let picture = svg(&plan, 1000, 3);
        assert_eq!(picture.matches("<title>").count(), steps * 3);
        assert_eq!(picture.matches("<line").count(), 4 * 6 * 3);
    }

    #[test]
    fn what_appears_under_the_mouse_are_the_elements_of_the_chunk() {
        let plan = verify(build(Algorithm::Ring, Collective::AllReduce, 2).unwrap()).unwrap();
        let picture = svg(&plan, 100, 3);
        for (chunk, elements) in [(1, "0..21"), (2, "21..42"), (3, "42..64")] {
            let tip =
                format!("<title>rank 1, step 0, chunk {chunk} of 3: send to 0, elements {elements}</title>");
            assert!(picture.contains(&tip), "{tip}: {picture}");
        }
        assert!(svg(&plan, 1, 2).contains(", no elements</title>"));
        assert!(svg(&plan, usize::MAX, 64).contains(&format!("..{}</title>", usize::MAX)));
    }

    #[test]
    fn the_legend_has_what_occurs() {
        let legend = |algorithm, collective| -> Vec<bool> {
            let plan = verify(build(algorithm, collective, 4).unwrap()).unwrap();
            let picture = svg(&plan, 100, 2);
            let names = ["send", "place", "reduce", "reduce and finish", "copy"];
            names.map(|name| picture.contains(&format!(">{name}</text>"))).into()
        };
        let broadcast = Collective::Broadcast { root: Rank(0) };
        assert_eq!(legend(Algorithm::BinomialTree, broadcast), [true, true, false, false, false]);
        assert_eq!(legend(Algorithm::Ring, Collective::AllReduce), [true, true, true, true, false]);
        assert_eq!(legend(Algorithm::MeshOneShot, Collective::AllReduce), [true, false, false, true, true]);
    }

    #[test]
    fn a_plan_without_steps_can_be_drawn() {
        let plan = verify(build(Algorithm::MeshTwoShot, Collective::AllReduce, 1).unwrap()).unwrap();
        assert!(svg(&plan, 0, 0).ends_with("</svg>\n"));
    }
}
