// Cividis (Nunez, Anderton and Renslow 2018), at eleven places.
const CIVIDIS = [
  [0, 32, 77], [0, 47, 111], [44, 62, 109], [73, 78, 108], [97, 93, 112], [120, 109, 117],
  [143, 126, 118], [168, 143, 114], [195, 161, 103], [223, 180, 86], [255, 233, 69],
];
const MISSING = 65535;
const INFINITE = 65534;
const GREATEST = 65533;

/** The colour of a share from 0 to 1. */
function cividis(share) {
  const at = Math.min(1, Math.max(0, share)) * (CIVIDIS.length - 1);
  const low = Math.min(CIVIDIS.length - 2, Math.floor(at));
  const mixed = CIVIDIS[low].map((part, i) => Math.round(part + (at - low) * (CIVIDIS[low + 1][i] - part)));
  return `rgb(${mixed.join(",")})`;
}

/** A statistic of a layer as `table[position][row]`; null where it isn't known. */
function unpackHeat(statistic, layer) {
  const { rows, data: packed } = statistic.layers[layer];
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const codes = new DataView(bytes.buffer);
  const { low, high, log } = statistic;
  const valueOf = (code) => {
    if (code === MISSING) return null;
    if (code === INFINITE) return Infinity;
    const share = code / GREATEST;
    return log ? low * (high / low) ** share : low + share * (high - low);
  };
  const table = [];
  for (let at = 0; at < bytes.length; at += 2 * rows) {
    table.push(Array.from({ length: rows }, (_, row) => valueOf(codes.getUint16(at + 2 * row, true))));
  }
  return table;
}

/** The least and the greatest number of some cells; from 0, if the least is near to it. */
function rangeOf(statistic, cells) {
  const known = cells.flat().filter((value) => value !== null && value !== Infinity);
  if (!known.length) return { low: 0, high: 0, log: false };
  const high = known.reduce((a, b) => Math.max(a, b));
  const least = known.reduce((a, b) => Math.min(a, b));
  const log = statistic.log && least > 0;
  return { low: !log && least >= 0 && least < 0.2 * high ? 0 : least, high, log };
}

/** Where a value lies in a range, 0 to 1. */
function shareOf({ low, high, log }, value) {
  if (value === Infinity) return 1;
  if (high <= low) return 0;
  return log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
}

function meanOf(values) {
  const known = values.filter((value) => value !== null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}

function medianOf(values) {
  const known = values.filter((value) => value !== null).sort((a, b) => a - b);
  return known.length ? known[Math.floor((known.length - 1) / 2)] : null;
}

/** A number in four digits. */
function short(value) {
  if (value === null) return "not known";
  if (value === Infinity) return "for ever";
  const large = Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3);
  return large ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}

const transposed = (table) => (table.length ? table[0].map((_, i) => table.map((row) => row[i])) : []);
