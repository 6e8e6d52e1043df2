"""The exact sentences of the site: the finding, then the doubt, then the next step. Markdown unless it says HTML."""

from __future__ import annotations

import re

from dare_platform.verdict import escaped
from dare_platform.views import RunView, SampleView, ScorerDifference
from leaderboard.quantities import count, fixed, plural

QUESTION = "Which post-training method helps a diffusion LLM most?"
SEARCH_THE_BOARD = "Search the board"
NO_CURVE = "**No curve yet.** The first step is logged a few seconds after training starts."
NO_CURVE_AT_ALL = "**No curve.** The run ended before its first step was logged."
NO_SAMPLE = "No sample rollout yet. The first one comes with the first steps of training."
NO_SAMPLE_AT_ALL = "No sample rollout was written."
NO_LOG = "Nothing has been written to the log yet."
NO_SCORE = "Nothing has been scored yet. Scores come with the evaluation, after training."
NO_SCORE_AT_ALL = "Nothing was scored."
NOT_SCORED = (
    "Answers that hold programs are run in a container or a sandbox of their own, or not at all. Without that a task "
    "has no score, which is not a score of zero."
)
ONE_SCORER = "One scorer has judged these answers. Another one judges the same answers later: `dare rescore {run}`."
HOW_SCORED = (
    "Undecoded: mask tokens are left in the text, so that the decoder failed; it counts as wrong. Where the scorer "
    "itself failed, the answer is in no mean."
)
WITHOUT_SETTINGS = "This method has no hyperparameters of its own."
SELF_REPORTED = (
    "Curves and rewards of a training run are reported by the run itself. Scores on the board are measured in a "
    "separate evaluation."
)
EMPTY_BOARD = (
    "**No entry yet.** `make demo` fills this board with small real runs in about ten minutes. Or submit the first one."
)


def backbone_is_not_here(backbone: str) -> str:
    """Why a board is empty, and what the operator does about it."""
    how = f"`dare backbone add FOLDER --name {backbone}`, then `dare migrate`"
    return f"**`{backbone}` is not on this machine.** Its operator adds it with {how}."


DATABASE_AWAY = (
    "**The database does not answer.** Running jobs continue and lose nothing. This page tries again every 10{thin}s"
)
NOT_SUBMITTED = "Not submitted: the database does not answer. Your file is kept; press again."
UPLOADS_REFUSED = (
    "**Files are not accepted here.** This server can be reached from other machines and runs entries without a "
    "container, so somebody else's code would run unguarded. Built-in methods can be queued; to test a file of your "
    "own, start the site on your own machine."
)
READING_ONLY = (
    "**This site is for reading.** It can be reached from other machines and nobody signs in here, so that nothing can "
    "be submitted or cancelled. On the machine itself, `dare submit` can; for several people an operator sets up "
    "signing in: see docs/operate.md."
)
SIGN_IN_TO_SUBMIT = "**Sign in to submit.** Reading needs no account."
WHO_SEES = {
    "public": "Everybody sees it: results, code, settings, and who sent it in.",
    "anonymous": (
        "Anonymous: it stands on the board under its name. Its author, and the code, settings and logs of a submitted "
        "file, are shown to nobody but the author and the operators of this site."
    ),
    "private": (
        "Private: nobody sees it but its author and the operators of this site. It is on no board and changes no rank."
    ),
}
"""By visibility."""
OPENING = "What others have seen cannot be closed again: a bad try would vanish from the board. It can be withdrawn."
LOG_WITHHELD = "The log of an anonymous entry is shown to its author only."
ORDER_WITHHELD = "The order of an anonymous entry is shown to its author only."
MESSAGES = (
    "One message comes when a whole entry of yours has ended, or one for each of its runs. A webhook gets JSON by "
    "POST, signed with a secret that you are told once; what does not arrive is tried again for some hours."
)
NO_MAIL = "This installation sends no mail."
WHY_SIGN_IN = (
    "**Reading needs no account.** Sign in to submit entries, to keep some of them private until they are ready, and "
    "to be told when they have ended."
)
NO_MESSAGES = "You are not told of anything yet."
KEEP = (
    "A permalink shows this board for ever as it is now, with its hash and the hash of the numbers behind it; "
    "`dare verify` checks both, and every answer. A board that has not changed keeps its link."
)
CHOOSE_TWO = "**Choose two entries.** Any two of one track, the untouched backbone among them."
CHOOSE_CURVES = "**Choose an entry**, or up to four of one track."
NO_COMPARISON = (
    "**These two cannot be compared.** One of them is not there, is somebody's private entry, or is of another track: "
    "tracks fix different budgets, and scores of two of them are not subtracted."
)
TOKENS = (
    "A program gives a token instead of signing in: `dare --server`, or the HTTP API. It may do what you choose here, "
    "never more than you, and ends by itself."
)
SHOWN_ONCE = "This is shown once. Keep it where only your program reads it."
METHOD_MISSING = "Choose a file or paste your class."
FILES_REFUSED = "Files are not accepted here; choose a built-in method."
CONTROL = (
    "The control is trained like a method, except that the advantages are shuffled among the completions: what it "
    "gains was not learned from the reward."
)
ZERO_BEFORE = "Where the untouched backbone is at exactly 0 too, a zero says nothing against a method."
HOLLOW = "Hollow: fewer seeds than a rank needs, in no mean and no test."
WHAT_A_FILE_IS = (
    "One class that derives from `GRPO` or a built-in method, with up to four methods of its own. It may import torch, "
    "math, dataclasses, typing and dare. We read it here and do not run it; after queuing it is checked on a tiny "
    "backbone before it trains."
)
PAUSED = "**Paused after 30 min without a change.** Reload the page to continue."
HOW_TO_READ = (
    "Each row is one method trained on the same backbone with the same data and budget, once per seed; the large "
    "number of a cell is the share of items solved by greedy decoding, the small one the mean reward of sampled "
    "completions.",
    "The mean gain is the large number minus that of the untouched backbone, averaged over the ranked tasks; the dot "
    "is that gain, the line through it its 95 % interval, the dashed line zero.",
    "A tinted cell differs from the untouched backbone beyond the noise of the seeds; a plain one may differ by "
    "chance.",
    "A row with fewer seeds than the track requires shows what there is: a hollow dot, no interval, no tint, no rank.",
)


def _quoted(text: str) -> str:
    """A value from a link or a person, safe inside backquotes and of bounded length."""
    flat = re.sub(r"[`\s]+", " ", text).strip()
    return flat if len(flat) <= 40 else flat[:39] + "…"


def bad_parameter(parameter: str, value: str, where: str, shown: str | None) -> str:
    """A link names a value that the page does not have."""
    asked = f"The link asks for `{parameter}={_quoted(value)}`, which this {where} does not have."
    return f"{asked} Showing `{shown}`." if shown else asked


def unknown_id(noun: str, given: str) -> str:
    """The same sentence for what is absent and for what is private."""
    return f"**There is no {noun} `{_quoted(given)}`.** It may be private or the link may be cut."


def no_id(noun: str) -> str:
    """A page of one thing, opened without naming it."""
    return f"**No {noun} is named.** This page shows one {noun} and needs its id in the link."


def no_match(search: str) -> str:
    """Every row is filtered away; plain text, the page escapes it."""
    return f"No entry matches “{search}”." if search else "Every entry is hidden."


def hidden_by(search: int, unranked: int) -> str:
    """What emptied a result."""
    parts = []
    if search:
        parts.append(f"{plural(search, 'entry')} {_are(search)} hidden by the search")
    if unranked:
        parts.append(f"{plural(unranked, 'entry')} {_are(unranked)} not ranked and hidden")
    return (", ".join(parts) + ".").capitalize() if parts else ""


def incomplete(entries: int, of: int) -> str:
    """Some rows are not ranked."""
    return f"{entries} of {plural(of, 'entry')} {_are(entries)} incomplete and not ranked."


def hide(entries: int) -> str:
    """The link that hides them."""
    return "Hide it" if entries == 1 else "Hide them"


def standing(headline: str, place: str | None) -> str:
    """How an entry stands; one that waits says where and for what instead of the bare word. Markdown.

    Args:
        headline: the status and how many runs are done.
        place: where its first waiting run stands in the queue.
    """
    _, waits, done = headline.partition("**Waiting.** ")
    return f"{place} {done}" if place and waits else headline


def newer_results(results: int) -> str:
    """The board has moved on since it was drawn."""
    return f"{results} newer {'result' if results == 1 else 'results'}."


def part_failed(part: str, reference: str) -> str:
    """One part of a page could not be drawn; the rest stands."""
    return f"**This {part} could not be drawn.** Reference `{reference}`. The numbers are in the tables."


def database_away(last_answer: str | None) -> str:
    """The whole page has nothing to show."""
    return DATABASE_AWAY.format(thin="\u202f") + (f"; last answer {last_answer}." if last_answer else ".")


def withdrawn(date: str, reason: str | None) -> str:
    """An entry that its owner took back."""
    said = f":** “{reason}”." if reason else ".**"
    return f"**Withdrawn by its owner on {date}{said} Results stay readable; they are not ranked."


def queue_button(runs: int) -> str:
    """A button names its act and its size."""
    return f"Queue {plural(runs, 'run')}"


def who_pays(charged: bool) -> str:
    """The last clause of a failure."""
    return "The time it used counts." if charged else "Nothing is charged."


def role_lacks(role: str, active: bool) -> str:
    """Somebody is signed in and may still not submit."""
    if not active:
        return "**This account is closed.** Reading needs none; an operator of this site can open it again."
    return f"**Your role is {role}, which may read.** To submit you need another; an operator of this site gives it."


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


NO_WORKER_YET = "No worker has ever worked here. Start one: `dare worker`."
BUDGET = (
    "Training ends at the first limit it reaches; the number of gradient-carrying forwards of one completion is the "
    "same for every method, so that a method that scores more views makes fewer steps. The clock is a guard: a run "
    "that meets it fails."
)


def blocked(runs: int) -> str:
    """Evaluations that wait for their training."""
    waits = "waits" if runs == 1 else "wait"
    return f"{plural(runs, 'evaluation')} {waits} for training to finish and {_are(runs)} not in the queue yet."


def before_after(with_control: bool, with_filled: bool, with_hollow: bool) -> str:
    """How the chart of before and after is read."""
    said = ["Dashed: the untouched backbone."]
    if with_filled:
        said.append("Filled: after training, mean of seeds with its 95 % t interval.")
    if with_hollow:
        said.append("Hollow: after training, fewer seeds than a rank needs, without an interval.")
    if with_control:
        said.append("A method whose sampled reward rises clearly above the control's learned from the reward.")
    return " ".join(said)


def seed_lines(runs: int) -> str:
    """How the lines of the curves are read."""
    if runs == 1:
        return "One seed, not smoothed."
    return "Thin: one seed each. Thick: their mean, where all have a value. Not smoothed."


def log_lines(shown: int, run_id: str) -> str:
    """What of a log is shown, and how to have all of it."""
    return f"The last {plural(shown, 'line')}. All of it, as it comes: `dare logs -f {run_id}`"


def newest_of(shown: int, events: int) -> str:
    """A long history, cut."""
    return f"The newest {shown} of {plural(events, 'event')}; the page of each run has all of its own."


def how_we_rank(seeds_required: int) -> tuple[str, ...]:
    """Five sentences."""
    return (
        "Each score is the mean over seeds of the share of items solved by greedy decoding, with the 95 % t interval "
        "of the seed means.",
        "The gain of a task is that score minus the score of the untouched backbone under the same protocol, and the "
        "mean gain is the average over the ranked tasks.",
        f"An entry is ranked when every ranked task has {plural(seeds_required, 'seed')}; nothing is averaged over an "
        "incomplete set.",
        "Two entries differ when a Welch test between their seeds says so after Holm's adjustment over all pairs of "
        "the board; a rank is the range that these tests allow.",
        "Every try counts in a public number, a withdrawn entry keeps its results, and a score is never replaced by a "
        "better one.",
    )


def does_not_log(entry: str, metric: str) -> str:
    """A method without this metric."""
    return f"{escaped(entry)} does not log {metric.replace('_', ' ')}."


def disagreement(found: ScorerDifference) -> str:
    """What two scorers say of one task's answers, in a sentence."""
    answers = f"{count(found.equal)} of {plural(found.answers, 'answer')} to {escaped(found.task)}"
    judged = f"`{found.a}` and `{found.b}` judge {answers} alike"
    if found.equal == found.answers:
        return f"**No disagreement.** {judged}."
    parts = [f"`{found.a}` alone solves {count(found.only_a)}", f"`{found.b}` alone {count(found.only_b)}"]
    if found.failed:
        parts.append(f"one of them failed on {count(found.failed)}")
    return f"{judged}; {', '.join(parts)}."


def moved(found: ScorerDifference) -> str:
    """The label of the list of answers that moved."""
    every = found.only_a + found.only_b
    if len(found.moved) < every:
        return f"The first {len(found.moved)} of {count(every)} answers"
    return "The answer" if every == 1 else f"The {count(every)} answers"


def progress(run: RunView) -> str:
    """`184 of 300`, or the state in words before anything is counted."""
    if run.summary.step is None or run.summary.of is None:
        return escaped(run.summary.sentence)
    return f"{count(run.summary.step)} of {count(run.summary.of)}"


def sample(found: SampleView) -> str:
    """What a rollout earned, and when it was taken."""
    when = f", from step {found.step}" if found.step is not None else ""
    decoded = sum(step > 0 for step in found.step_map)
    return f"Reward {fixed(found.reward, 2)}, {plural(decoded, 'token')}{when}."


def problems_first(problems: int) -> str:
    """Why the button is not active."""
    return f"{plural(problems, 'problem')} to mend first, see above."
