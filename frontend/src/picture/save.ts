/** Panels as files: the SVG carries its own colours, so it looks the same wherever it is opened. */

export function download(name: string, blob: Blob): void {
  const link = document.createElement('a')
  link.href = URL.createObjectURL(blob)
  link.download = name
  link.click()
  setTimeout(() => URL.revokeObjectURL(link.href), 1000)
}

export function svgText(svg: SVGSVGElement, paper: string): string {
  const copy = svg.cloneNode(true) as SVGSVGElement
  const { width, height } = svg.viewBox.baseVal
  copy.querySelectorAll('.chosen').forEach((one) => one.remove())
  copy.setAttribute('xmlns', 'http://www.w3.org/2000/svg')
  copy.setAttribute('width', String(width))
  copy.setAttribute('height', String(height))
  copy.setAttribute('font-family', 'system-ui, sans-serif')
  const back = document.createElementNS('http://www.w3.org/2000/svg', 'rect')
  for (const [name, value] of Object.entries({ width: String(width), height: String(height), fill: paper })) back.setAttribute(name, value)
  copy.prepend(back)
  return new XMLSerializer().serializeToString(copy)
}

export const fileName = (title: string, ending: string): string => `rheoscope-${title.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-|-$/g, '').slice(0, 60)}.${ending}`

export function saveSvg(svg: SVGSVGElement, title: string, paper: string): void {
  download(fileName(title, 'svg'), new Blob([svgText(svg, paper)], { type: 'image/svg+xml' }))
}

export async function savePng(svg: SVGSVGElement, title: string, paper: string, times = 3): Promise<void> {
  const { width, height } = svg.viewBox.baseVal
  const image = new Image()
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svgText(svg, paper))}`
  await image.decode()
  const canvas = document.createElement('canvas')
  ;[canvas.width, canvas.height] = [width * times, height * times]
  canvas.getContext('2d')!.drawImage(image, 0, 0, canvas.width, canvas.height)
  canvas.toBlob((blob) => blob && download(fileName(title, 'png'), blob))
}
