"""Dark ink, and shades that stay apart when printed in grey."""

from matplotlib.colors import LinearSegmentedColormap

INK = "#1c1c1c"
BLUE = "#0b4f8a"
LIGHT_BLUE = "#6fa8d6"
ORANGE = "#d9822b"
GREY = "#8a8a8a"
PALE = "#dde3ea"
SEQUENCE = ("#0b2f57", "#d9822b", "#3f86c4", "#7a4a12", "#8fc1e8", "#555555")
DASHES = ("-", "--", "-", ":", "--", "-.")
MARKERS = "o^sDvPX<>*"
SHADES = LinearSegmentedColormap.from_list("shades", ["#ffffff", "#c4dbef", LIGHT_BLUE, BLUE, "#06243f"])
