"""The pictures in docs/images: the demo's report as a browser shows it.

python -m tests.report.make_images
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from playwright.sync_api import sync_playwright
from typer.testing import CliRunner

from hybridrt.cli.app import app
from hybridrt.demo.facts import NAMES
from tests.report.pages import CHROMIUM_OPTIONS, OpenPage, find_chromium

FOLDER = Path(__file__).parents[2] / "docs" / "images"
FACTS = "".join(f"{name}={37 * i % 1000:03d}\n" for i, name in enumerate(NAMES[:60]))
PROMPT = f"now=640\n{FACTS}amy?"
STEP = 22
"""Of the run: two sequences share what they begin with."""
COMMAND = ["inspect", "demo", "--prompt", PROMPT, "--cache-memory", "64MiB"]
WIDTH = 780
SIZE = {"width": 1180, "height": 900}


def main() -> None:
    """Writes one picture in light colours and one in dark ones."""
    FOLDER.mkdir(exist_ok=True)
    found = find_chromium()
    assert found is not None, "no Chromium on this machine: apt-get install chromium"
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "report.html"
        CliRunner().invoke(app, [*COMMAND, "--html", str(path)], catch_exceptions=False)
        browser = playwright.chromium.launch(executable_path=found, args=CHROMIUM_OPTIONS)
        for scheme in ("light", "dark"):
            page = OpenPage(browser, path, color_scheme=scheme, viewport=SIZE)
            page.page.focus("#map-slider")
            page.page.keyboard.press("Home")
            for _ in range(STEP):
                page.page.keyboard.press("ArrowRight")
            page.page.evaluate("document.activeElement.blur()")
            shot = Path(folder) / f"{scheme}.png"
            page.page.screenshot(path=shot, full_page=True)
            page.close()
            _save(shot, FOLDER / f"report-{scheme}.webp")
        browser.close()


def _save(shot: Path, path: Path) -> None:
    with Image.open(shot) as picture:
        height = round(picture.height * WIDTH / picture.width)
        smaller = picture.convert("RGB").resize((WIDTH, height), Image.Resampling.LANCZOS)
        smaller.save(path, quality=72, method=6)
    print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
