"""The file that Streamlit runs. It lies apart, since beside `pages/` Streamlit runs those files by themselves."""

from leaderboard.app import main

main()
