FOLDERS = "TORCHWELD_PROBLEM_FOLDERS"  # folders of files, as paths are listed
