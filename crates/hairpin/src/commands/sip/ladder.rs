//! Messages of a call as a ladder: the server in the second column, each other side in a column of its own.

use super::trace::Message;
use crate::commands::output::printable;

/// The width of a column, and of the time before the first one.
const COLUMN_WIDTH: usize = 30;
const TIME_WIDTH: usize = 16;

/// The column of the server.
const SERVER_COLUMN: usize = 1;

/// Draws the messages, which are in order. Times are UTC.
pub(super) fn draw(messages: &[Message]) -> String {
    let mut sides: Vec<String> = Vec::new();
    for message in messages {
        let side = side_of(message);
        if !sides.contains(&side) {
            sides.push(side);
        }
    }
    let mut names = sides.clone();
    names.insert(SERVER_COLUMN.min(names.len()), "hairpin".to_owned());
    let head: String = names
        .iter()
        .map(|name| format!("{name:^COLUMN_WIDTH$}"))
        .collect();
    let mut text = format!("{:TIME_WIDTH$}{}\n", "UTC", head.trim_end());
    for message in messages {
        let side = side_of(message);
        let place = sides.iter().position(|it| *it == side).unwrap_or(0);
        let column = if place < SERVER_COLUMN {
            place
        } else {
            place + 1
        };
        let arrow = arrow(message, column, names.len());
        text += &format!(
            "{:TIME_WIDTH$}{}\n",
            time(message.unix_us),
            arrow.trim_end()
        );
    }
    text
}

fn side_of(message: &Message) -> String {
    format!("{} {}", message.transport, message.remote)
}

fn time(unix_us: u64) -> String {
    let (seconds, us) = (unix_us / 1_000_000, unix_us % 1_000_000);
    let (hours, minutes) = (seconds / 3600 % 24, seconds / 60 % 60);
    format!("{hours:02}:{minutes:02}:{:02}.{us:06}", seconds % 60)
}

/// One line: a vertical bar per column, and an arrow between the server and a column.
fn arrow(message: &Message, column: usize, columns: usize) -> String {
    let centre = |column: usize| column * COLUMN_WIDTH + COLUMN_WIDTH / 2;
    let mut line = vec![' '; columns * COLUMN_WIDTH];
    for column in 0..columns {
        line[centre(column)] = '|';
    }
    let (left, right) = (
        centre(column.min(SERVER_COLUMN)),
        centre(column.max(SERVER_COLUMN)),
    );
    line[left + 1..right].fill('-');
    let goes_right = message.is_sent == (column > SERVER_COLUMN);
    if goes_right {
        line[right - 1] = '>';
    } else {
        line[left + 1] = '<';
    }
    let room = right - left - 7;
    let label: Vec<char> = printable(&message.summary()).chars().take(room).collect();
    let start = left + 1 + (right - left - 1 - label.len() - 2) / 2;
    line[start] = ' ';
    line[start + 1..=start + label.len()].copy_from_slice(&label);
    line[start + label.len() + 1] = ' ';
    line.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::super::trace::tests::message;
    use super::*;

    #[test]
    fn a_call_between_two_phones_is_a_ladder_of_three_columns() {
        let day = 86_400_000_000;
        let invite = "INVITE sip:a@b SIP/2.0\r\n\r\n";
        let ringing = "SIP/2.0 180 Ringing\r\nCSeq: 1 INVITE\r\n\r\n";
        let messages = [
            message(day + 3_723_000_001, false, 40012, invite),
            message(day + 3_723_000_200, true, 5060, invite),
            message(day + 3_723_500_000, false, 5060, ringing),
            message(day + 3_723_500_100, true, 40012, ringing),
        ];
        let drawn = draw(&messages);
        let lines: Vec<&str> = drawn.lines().collect();
        assert_eq!(lines.len(), 5, "{drawn}");
        let head: Vec<&str> = lines[0].split_whitespace().collect();
        let [phone, other] = ["192.0.2.9:40012", "192.0.2.9:5060"];
        assert_eq!(head, ["UTC", "UDP", phone, "hairpin", "UDP", other]);
        for (line, start, arrow) in [
            (1, "01:02:03.000001", "|---------- INVITE ---------->|"),
            (2, "01:02:03.000200", "|---------- INVITE ---------->|"),
            (3, "01:02:03.500000", "|<-- 180 Ringing (INVITE) ----|"),
            (4, "01:02:03.500100", "|<-- 180 Ringing (INVITE) ----|"),
        ] {
            assert!(lines[line].starts_with(start), "{drawn}");
            assert!(lines[line].contains(arrow), "{drawn}");
            // The first and the last message are on the side of the caller.
            let at = lines[line].find(arrow).unwrap();
            assert_eq!(
                at < TIME_WIDTH + COLUMN_WIDTH,
                line == 1 || line == 4,
                "{drawn}"
            );
        }
    }

    #[test]
    fn network_data_cannot_control_the_terminal() {
        let reason = format!(
            "SIP/2.0 486 \u{1b}[2J{}\r\nCSeq: 1 INVITE\r\n\r\n",
            "x".repeat(90)
        );
        let drawn = draw(&[message(0, false, 1, &reason)]);
        assert!(!drawn.contains('\u{1b}'), "{drawn}");
        assert!(
            drawn.lines().all(|line| line.chars().count() < 80),
            "{drawn}"
        );
    }
}
