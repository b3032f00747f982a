"""Texts that a page, a terminal or a Markdown table must show and never run."""

HACK = "window.hacked=1"
HOSTILE = [
    f"<script>{HACK}</script>",
    f"</script><script>{HACK}</script>",
    f"<img src=x onerror={HACK}>",
    f"<svg onload={HACK}>",
    f'"><b onmouseover="{HACK}" style="position:fixed;inset:0">over</b>',
    f"' autofocus onfocus='{HACK}' x='",
    f"javascript:{HACK}",
    f"[a link](javascript:{HACK})",
    f'<a href="javascript:{HACK}">a link</a>',
    "<!-- <script>",
    "]]> --> *!/",
    "{{ 7 * 7 }} {% include 'x' %} ${7 * 7}",
    "\x1b[31mred\x1b[0m\x1b]0;title\x07",
    "right \u202etfel\u202c \u200f left",
    "a line\u2028and\u2029another",
    "nul \x00 and bell \x07",
    "&lt;b&gt; &amp; &#60;script&#62;",
    f"</title><script>{HACK}</script>",
    "<style>* { display: none }</style>",
    f'<iframe srcdoc="<script>parent.{HACK}</script>"></iframe>',
    "<meta http-equiv=refresh content='0;url=http://127.0.0.1:9/'>",
    "<base href='http://127.0.0.1:9/'><link rel=stylesheet href=a.css>",
    f"<details open ontoggle={HACK}>",
    "half of a character: \ud83d!",
    "| pipes | and `ticks` | **bold** | # head",
    "https://127.0.0.1:9/?q=<b>&x='\"",
]
LONG = "x" * 100_000
