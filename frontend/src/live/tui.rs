//! The terminal: taken when the run begins, and given back as it was at its end, on Ctrl-C, on a
//! signal and on a panic, whoever comes first.

use std::{
    io::{self, IsTerminal, Stdout},
    sync::{
        Once,
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc::Sender,
    },
    thread,
    time::Duration,
};

use ratatui::{
    Terminal,
    backend::CrosstermBackend,
    crossterm::{
        cursor,
        event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
        execute,
        terminal::{
            Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
            enable_raw_mode,
        },
    },
};
use report::State;

use super::{Latest, LiveError, Onlooker, be_nice, held, screen};
use crate::interrupt;

/// How often keys, signals and figures are looked for.
const LOOK: Duration = Duration::from_millis(100);

/// The terminal is taken.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Gives the terminal back, if it is taken. Anybody may call it, at any time.
pub fn restore() {
    if TAKEN.swap(false, SeqCst) {
        // What refuses here is beyond help.
        let _ = disable_raw_mode();
        let _ = execute!(io::stdout(), LeaveAlternateScreen, cursor::Show);
        held::release();
    }
}

/// Who reads what a panic says reads it on a terminal that is his own again.
fn restore_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            restore();
            before(info);
        }));
    });
}

fn take() -> io::Result<Terminal<CrosstermBackend<Stdout>>> {
    enable_raw_mode()?;
    TAKEN.store(true, SeqCst);
    held::hold();
    // Not `Terminal::clear`: it asks where the cursor is, and not every terminal answers.
    execute!(
        io::stdout(),
        EnterAlternateScreen,
        Clear(ClearType::All),
        cursor::Hide
    )?;
    Terminal::new(CrosstermBackend::new(io::stdout()))
}

/// Takes the terminal and draws on it until the run ends, on a thread of its own, which says there
/// that it is done.
///
/// # Errors
/// There is no terminal, or it refuses; then it is as it was.
pub fn begin(latest: Latest, onlooker: Onlooker, done: Sender<()>) -> Result<(), LiveError> {
    if !io::stdout().is_terminal() {
        return Err(LiveError::NoTerminal);
    }
    restore_on_panic();
    let terminal = take().map_err(|error| {
        restore();
        LiveError::Terminal(error)
    })?;
    let draw = move || {
        be_nice();
        let drawn = drawing(terminal, latest);
        restore();
        if let Err(error) = drawn {
            tracing::warn!("--live tui: {error}; the run goes on without it");
        }
        drop(onlooker);
        let _ = done.send(());
    };
    let thread = thread::Builder::new().name("live".to_owned());
    thread.spawn(draw).map_err(|error| {
        restore();
        LiveError::Thread(error)
    })?;
    Ok(())
}

fn drawing(mut terminal: Terminal<CrosstermBackend<Stdout>>, mut latest: Latest) -> io::Result<()> {
    let mut stale = true;
    // Somebody else may have given the terminal back: a panic, or who waited too long for us.
    while TAKEN.load(SeqCst) && interrupt::requested().is_none() {
        // Where nobody shows anything any more the run has come to its end without a word.
        let Ok(changed) = latest.has_changed() else {
            break;
        };
        if changed || stale {
            let so_far = latest.borrow_and_update().clone();
            if matches!(so_far.state, State::Ending | State::Over(_)) {
                break;
            }
            terminal.draw(|frame| screen::draw(&so_far, frame))?;
            stale = false;
        }
        if event::poll(LOOK)? {
            match event::read()? {
                Event::Key(key) if is_ctrl_c(&key) => {
                    // As if the terminal had not been taken: the second one ends the program.
                    restore();
                    // SAFETY: raise takes a number; the handler stores to an atomic.
                    unsafe { libc::raise(libc::SIGINT) };
                    break;
                }
                Event::Key(key) if key.code == KeyCode::Char('q') => break,
                Event::Resize(..) => stale = true,
                _ => {}
            }
        }
    }
    Ok(())
}

fn is_ctrl_c(key: &KeyEvent) -> bool {
    key.kind == KeyEventKind::Press
        && key.code == KeyCode::Char('c')
        && key.modifiers.contains(KeyModifiers::CONTROL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_gives_the_terminal_back_before_it_is_told() {
        restore_on_panic();
        TAKEN.store(true, SeqCst);
        let panicked = std::panic::catch_unwind(|| panic!("as it may happen"));
        assert!(panicked.is_err() && !TAKEN.load(SeqCst));
    }
}
